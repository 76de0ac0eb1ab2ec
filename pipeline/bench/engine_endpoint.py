"""An engine in this process as an endpoint: the same questions without HTTP between."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from pipeline.bench.asks import Ask
from pipeline.bench.endpoint import EndpointError, Usage
from pipeline.bench.engine_steps import Step

if TYPE_CHECKING:
    from vlm_engine import Message, VLMEngine


class EngineEndpoint:
    """See :class:`pipeline.bench.endpoint.Endpoint`. ``engine``: ready."""

    def __init__(self, engine: VLMEngine) -> None:
        self._engine = engine

    async def answer(self, ask: Ask, on_tokens: Callable[[int], None]) -> Usage:
        from vlm_engine import EngineError, FinishReason, PriorityClass, SamplingParams

        params = SamplingParams(temperature=0.0, max_tokens=ask.max_tokens, ignore_eos=True)
        options: dict[str, Any] = {"do_image_splitting": False} if ask.one_tile else {}
        background = PriorityClass.BACKGROUND if ask.background else PriorityClass.INTERACTIVE
        seen = prompt_tokens = 0
        try:
            prompt = await self._engine.prepare([_message(ask)], mm_processor_kwargs=options)
            async with await self._engine.submit(prompt, params, priority_class=background) as stream:
                async for piece in stream:
                    if piece.finish_reason in (FinishReason.ERROR, FinishReason.ABORT):
                        raise EndpointError(piece.error or "the request was aborted")
                    prompt_tokens = piece.num_prompt_tokens
                    if piece.num_output_tokens > seen:
                        on_tokens(piece.num_output_tokens - seen)
                        seen = piece.num_output_tokens
        except EngineError as error:
            raise EndpointError(str(error)) from error
        return Usage(prompt_tokens, seen)

    async def steps(self) -> list[Step]:
        """The engine's last steps, for :class:`pipeline.bench.engine_steps.StepWatch`."""
        # A copy first: the engine's thread goes on adding steps.
        return [asdict(record) for record in self._engine.steps.records()]


def _message(ask: Ask) -> Message:
    if ask.picture is None:
        return {"role": "user", "content": ask.text}
    return {
        "role": "user",
        "content": [{"type": "image", "image": ask.picture}, {"type": "text", "text": ask.text}],
    }
