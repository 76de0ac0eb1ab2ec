"""A response as an object, and as the typed events of its stream in their order."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal
from uuid import uuid4

from openai import BaseModel
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseCreatedEvent,
    ResponseError,
    ResponseFailedEvent,
    ResponseIncompleteEvent,
    ResponseInProgressEvent,
    ResponseQueuedEvent,
    ResponseUsage,
)
from openai.types.responses.response import IncompleteDetails
from openai.types.responses.response_usage import InputTokensDetails, OutputTokensDetails

from api.errors import ApiError
from api.openai.answers import AnswerShape
from api.openai.response_output import OutputItem, OutputItems
from api.openai.response_shown import shown_choice, shown_text, shown_tools
from api.openai.responses_request import ResponsesRequest
from api.openai.submission import Gathered
from api.streaming import sse
from vlm_engine.outputs import FinishReason, RequestOutput
from vlm_engine.sampling_params import SamplingParams

Status = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]


@dataclass(slots=True)
class ResponseAnswer:
    """Builds one response. A stream's events are numbered in the order in which they are made.

    Attributes:
        stored: whether the response can be retrieved later.
        shape: what the answer may consist of.
    """

    model: str
    asked: ResponsesRequest
    params: SamplingParams
    stored: bool = False
    shape: AnswerShape = field(default_factory=AnswerShape)
    id: str = field(default_factory=lambda: f"resp_{uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))
    _sequence: int = 0
    _items: OutputItems | None = None

    @property
    def _with_logprobs(self) -> bool:
        return self.params.logprobs is not None

    # The object ------------------------------------------------------------------------------------------------------

    def whole(self, gathered: Gathered) -> Response:
        """The finished response: completed, or incomplete when it ran into its bound."""
        output = gathered.outputs[0]
        cut = output.finish_reason is FinishReason.LENGTH
        written = self._written()
        if not written.begun:
            # Told to nobody: the answer goes out in one piece.
            deque(written.add(output.text, output.logprobs), 0)
            deque(written.finish(cut=cut), 0)
        details = IncompleteDetails(reason="max_output_tokens") if cut else None
        status: Status = "incomplete" if cut else "completed"
        return self._response(status, written.items, usage=_usage(gathered), incomplete_details=details)

    def unfinished(self, status: Status, error: ApiError | None = None) -> Response:
        """The response while there is no whole answer, or when there will never be one."""
        what = None if error is None else ResponseError(code="server_error", message=error.message)
        return self._response(status, [], error=what)

    def _response(
        self,
        status: Status,
        output: Sequence[OutputItem],
        *,
        usage: ResponseUsage | None = None,
        incomplete_details: IncompleteDetails | None = None,
        error: ResponseError | None = None,
    ) -> Response:
        return Response(
            id=self.id,
            object="response",
            created_at=self.created,
            completed_at=time.time() if status == "completed" else None,
            status=status,
            model=self.model,
            output=list(output),
            usage=usage,
            error=error,
            incomplete_details=incomplete_details,
            instructions=self.asked.instructions,
            max_output_tokens=self.asked.max_output_tokens,
            metadata=self.asked.metadata or {},
            temperature=self.params.temperature,
            top_p=self.params.top_p,
            top_logprobs=self.params.logprobs or 0,
            parallel_tool_calls=self.shape.use.parallel,
            tool_choice=shown_choice(self.asked, self.shape.use),
            tools=shown_tools(self.asked),
            previous_response_id=self.asked.previous_response_id,
            background=bool(self.asked.background),
            truncation="disabled",
            **shown_text(self.asked),
            **{"store": self.stored},  # in the API, not in every version of the package
        )

    def _written(self) -> OutputItems:
        """The items so far. First asked for once the prompt is known, and with it whether reasoning may come."""
        if self._items is None:
            self._items = OutputItems(self.shape.reader(), self._with_logprobs)
        return self._items

    # The stream ------------------------------------------------------------------------------------------------------

    def opening(self) -> Iterator[bytes]:
        """Everything before the first text."""
        started = self.unfinished("in_progress")
        yield self._event(ResponseCreatedEvent, "response.created", response=started)
        yield self._event(ResponseInProgressEvent, "response.in_progress", response=started)

    def queued(self, response: Response) -> Iterator[bytes]:
        """The opening of a background response's stream, up to where it waits. :meth:`begun` goes on."""
        yield self._event(ResponseCreatedEvent, "response.created", response=response)
        yield self._event(ResponseQueuedEvent, "response.queued", response=response)

    def begun(self, response: Response) -> Iterator[bytes]:
        """A background response has left the queue."""
        yield self._event(ResponseInProgressEvent, "response.in_progress", response=response)

    def piece(self, piece: RequestOutput) -> Iterator[bytes]:
        """What one piece adds to the items, and their end with the last."""
        written = self._written()
        for kind, name, fields in written.add(piece.text, piece.logprobs):
            yield self._event(kind, name, **fields)
        if piece.finish_reason is not None:
            for kind, name, fields in written.finish(cut=piece.finish_reason is FinishReason.LENGTH):
                yield self._event(kind, name, **fields)

    def closing(self, response: Response) -> Iterator[bytes]:
        """Everything after the last item. ``response`` is the whole (:meth:`whole`), or a cancelled one."""
        if response.status in ("incomplete", "cancelled"):
            yield self._event(ResponseIncompleteEvent, "response.incomplete", response=response)
        else:
            yield self._event(ResponseCompletedEvent, "response.completed", response=response)

    def failed(self, error: ApiError) -> bytes:
        """The last event of a stream that failed after it began."""
        return self._event(ResponseFailedEvent, "response.failed", response=self.unfinished("failed", error))

    def _event(self, kind: type[BaseModel], event_name: str, /, **fields: Any) -> bytes:
        event = kind(type=event_name, sequence_number=self._sequence, **fields)
        self._sequence += 1
        return sse(event.model_dump_json(exclude_unset=True), event=event_name)


def _usage(gathered: Gathered) -> ResponseUsage:
    # cache_write_tokens: required by newer versions of the package, unknown to older ones, which keep extras.
    cached: dict[str, int] = {"cached_tokens": gathered.num_cached_tokens, "cache_write_tokens": 0}
    return ResponseUsage(
        input_tokens=gathered.num_prompt_tokens,
        input_tokens_details=InputTokensDetails(**cached),
        output_tokens=gathered.num_output_tokens,
        output_tokens_details=OutputTokensDetails(reasoning_tokens=gathered.num_reasoning_tokens),
        total_tokens=gathered.num_prompt_tokens + gathered.num_output_tokens,
    )
