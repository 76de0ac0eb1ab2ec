"""A response as an object, and as the typed events of its stream in their order."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal
from uuid import uuid4

from openai import BaseModel
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseContentPartAddedEvent,
    ResponseContentPartDoneEvent,
    ResponseCreatedEvent,
    ResponseError,
    ResponseFailedEvent,
    ResponseIncompleteEvent,
    ResponseInProgressEvent,
    ResponseOutputItemAddedEvent,
    ResponseOutputItemDoneEvent,
    ResponseOutputMessage,
    ResponseOutputText,
    ResponseTextDeltaEvent,
    ResponseTextDoneEvent,
    ResponseUsage,
)
from openai.types.responses.response import IncompleteDetails
from openai.types.responses.response_usage import InputTokensDetails, OutputTokensDetails

from api.errors import ApiError
from api.openai.logprobs import delta_logprobs, done_logprobs, item_logprobs
from api.openai.responses_request import ResponsesRequest
from api.openai.submission import Gathered
from api.streaming import sse
from vlm_engine.outputs import FinishReason, PositionLogprobs, RequestOutput
from vlm_engine.sampling_params import SamplingParams

Status = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]


@dataclass(slots=True)
class ResponseAnswer:
    """Builds one response. A stream's events are numbered in the order in which they are made.

    Attributes:
        stored: whether the response can be retrieved later.
    """

    model: str
    asked: ResponsesRequest
    params: SamplingParams
    stored: bool = False
    id: str = field(default_factory=lambda: f"resp_{uuid4().hex}")
    message_id: str = field(default_factory=lambda: f"msg_{uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))
    _sequence: int = 0

    @property
    def _with_logprobs(self) -> bool:
        return self.params.logprobs is not None

    # The object ------------------------------------------------------------------------------------------------------

    def whole(self, gathered: Gathered) -> Response:
        """The finished response: completed, or incomplete when it ran into its bound."""
        output = gathered.outputs[0]
        cut = output.finish_reason is FinishReason.LENGTH
        message = self._message(output.text, output.logprobs, "incomplete" if cut else "completed")
        details = IncompleteDetails(reason="max_output_tokens") if cut else None
        return self._response(
            "incomplete" if cut else "completed", [message], usage=_usage(gathered), incomplete_details=details
        )

    def unfinished(self, status: Status, error: ApiError | None = None) -> Response:
        """The response while there is no whole answer, or when there will never be one."""
        what = None if error is None else ResponseError(code="server_error", message=error.message)
        return self._response(status, [], error=what)

    def _response(
        self,
        status: Status,
        output: list[ResponseOutputMessage],
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
            output=output,
            usage=usage,
            error=error,
            incomplete_details=incomplete_details,
            instructions=self.asked.instructions,
            max_output_tokens=self.asked.max_output_tokens,
            metadata=self.asked.metadata or {},
            temperature=self.params.temperature,
            top_p=self.params.top_p,
            top_logprobs=self.params.logprobs or 0,
            parallel_tool_calls=False,
            tool_choice="none",
            tools=[],
            previous_response_id=self.asked.previous_response_id,
            background=bool(self.asked.background),
            truncation="disabled",
            **{"store": self.stored},  # in the API, not in every version of the package
        )

    def _message(
        self, text: str, logprobs: Sequence[PositionLogprobs], status: Literal["completed", "incomplete"]
    ) -> ResponseOutputMessage:
        part = self._part(text, logprobs)
        return ResponseOutputMessage(
            id=self.message_id, type="message", role="assistant", status=status, content=[part]
        )

    def _part(self, text: str, logprobs: Sequence[PositionLogprobs]) -> ResponseOutputText:
        return ResponseOutputText(
            type="output_text",
            text=text,
            annotations=[],
            logprobs=item_logprobs(logprobs) if self._with_logprobs else [],
        )

    # The stream ------------------------------------------------------------------------------------------------------

    def opening(self) -> Iterator[bytes]:
        """Everything before the first text."""
        started = self.unfinished("in_progress")
        yield self._event(ResponseCreatedEvent, "response.created", response=started)
        yield self._event(ResponseInProgressEvent, "response.in_progress", response=started)
        item = ResponseOutputMessage(
            id=self.message_id, type="message", role="assistant", status="in_progress", content=[]
        )
        yield self._event(ResponseOutputItemAddedEvent, "response.output_item.added", output_index=0, item=item)
        yield self._part_event(ResponseContentPartAddedEvent, "response.content_part.added", part=self._part("", ()))

    def piece(self, piece: RequestOutput) -> Iterator[bytes]:
        """The delta for one piece, if it holds anything."""
        logprobs = delta_logprobs(piece.logprobs) if self._with_logprobs else []
        if piece.text or logprobs:
            yield self._part_event(
                ResponseTextDeltaEvent, "response.output_text.delta", delta=piece.text, logprobs=logprobs
            )

    def closing(self, gathered: Gathered, response: Response) -> Iterator[bytes]:
        """Everything after the last text. ``response`` is the whole (:meth:`whole`)."""
        output = gathered.outputs[0]
        logprobs = done_logprobs(output.logprobs) if self._with_logprobs else []
        yield self._part_event(ResponseTextDoneEvent, "response.output_text.done", text=output.text, logprobs=logprobs)
        part = self._part(output.text, output.logprobs)
        yield self._part_event(ResponseContentPartDoneEvent, "response.content_part.done", part=part)
        item = response.output[0]
        yield self._event(ResponseOutputItemDoneEvent, "response.output_item.done", output_index=0, item=item)
        if response.status == "incomplete":
            yield self._event(ResponseIncompleteEvent, "response.incomplete", response=response)
        else:
            yield self._event(ResponseCompletedEvent, "response.completed", response=response)

    def failed(self, error: ApiError) -> bytes:
        """The last event of a stream that failed after it began."""
        return self._event(ResponseFailedEvent, "response.failed", response=self.unfinished("failed", error))

    def _part_event(self, kind: type[BaseModel], name: str, **fields: Any) -> bytes:
        return self._event(kind, name, item_id=self.message_id, output_index=0, content_index=0, **fields)

    def _event(self, kind: type[BaseModel], name: str, **fields: Any) -> bytes:
        event = kind(type=name, sequence_number=self._sequence, **fields)
        self._sequence += 1
        return sse(event.model_dump_json(exclude_unset=True), event=name)


def _usage(gathered: Gathered) -> ResponseUsage:
    # cache_write_tokens: required by newer versions of the package, unknown to older ones, which keep extras.
    cached: dict[str, int] = {"cached_tokens": gathered.num_cached_tokens, "cache_write_tokens": 0}
    return ResponseUsage(
        input_tokens=gathered.num_prompt_tokens,
        input_tokens_details=InputTokensDetails(**cached),
        output_tokens=gathered.num_output_tokens,
        output_tokens_details=OutputTokensDetails(reasoning_tokens=0),
        total_tokens=gathered.num_prompt_tokens + gathered.num_output_tokens,
    )
