"""A response's output items, built from an answer's events as they come, with the typed events of its stream."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal
from uuid import uuid4

from openai import BaseModel
from openai.types.responses import (
    ResponseContentPartAddedEvent,
    ResponseContentPartDoneEvent,
    ResponseFunctionCallArgumentsDeltaEvent,
    ResponseFunctionCallArgumentsDoneEvent,
    ResponseFunctionToolCall,
    ResponseOutputItemAddedEvent,
    ResponseOutputItemDoneEvent,
    ResponseOutputMessage,
    ResponseOutputText,
    ResponseReasoningItem,
    ResponseReasoningTextDeltaEvent,
    ResponseReasoningTextDoneEvent,
    ResponseTextDeltaEvent,
    ResponseTextDoneEvent,
)
from openai.types.responses.response_content_part_added_event import PartReasoningText as AddedReasoning
from openai.types.responses.response_content_part_done_event import PartReasoningText as DoneReasoning
from openai.types.responses.response_reasoning_item import Content as ReasoningContent

from api.openai.answers import AnswerReader
from api.openai.logprobs import delta_logprobs, done_logprobs, item_logprobs
from api.openai.tool_parsers import CallArguments, CallBegin, Event, Reasoning, Text, merged
from vlm_engine.outputs import PositionLogprobs

OutputItem = ResponseOutputMessage | ResponseReasoningItem | ResponseFunctionToolCall
Status = Literal["in_progress", "completed", "incomplete"]
Told = tuple[type[BaseModel], str, dict[str, Any]]
"""An event of the stream: its class, its name, its fields."""


@dataclass(slots=True)
class _Open:
    """The item that is being written."""

    kind: Literal["message", "reasoning", "call"]
    id: str
    text: str = ""
    logprobs: list[PositionLogprobs] = field(default_factory=list)
    name: str = ""
    call_id: str = ""


class OutputItems:
    """Items in their order. Feed :meth:`add`, then :meth:`finish` once; each gives what a stream says.

    Args:
        reader: of this one output.
        with_logprobs: messages carry the log-probabilities of their tokens.
    """

    def __init__(self, reader: AnswerReader, with_logprobs: bool) -> None:
        self._reader = reader
        self._with_logprobs = with_logprobs
        self._open: _Open | None = None
        self._pending: list[PositionLogprobs] = []
        self.items: list[OutputItem] = []
        self.begun = False

    def add(self, text: str, logprobs: Sequence[PositionLogprobs]) -> Iterator[Told]:
        """New text and the log-probabilities of its tokens."""
        self.begun = True
        self._pending.extend(logprobs)
        events = self._reader.add(text)
        if not events and self._pending and self._with_logprobs and self._open is not None:
            events = [Text("")] if self._open.kind == "message" else []
        for event in events:
            yield from self._take(event)

    def finish(self, *, cut: bool) -> Iterator[Told]:
        """The end; ``cut``: the output ran into its bound."""
        for event in merged(self._reader.finish()):
            yield from self._take(event)
        if self._open is None and not self.items:
            yield from self._begin(_Open("message", f"msg_{uuid4().hex}"))
        yield from self._close("incomplete" if cut else "completed")
        if cut and self.items:
            self.items[-1].status = "incomplete"

    def _take(self, event: Event) -> Iterator[Told]:
        if isinstance(event, Text):
            yield from self._switch("message", "msg")
            yield from self._message_delta(event.text)
        elif isinstance(event, Reasoning):
            yield from self._switch("reasoning", "rs")
            yield from self._delta(
                ResponseReasoningTextDeltaEvent, "response.reasoning_text.delta", event.text, content_index=0
            )
        elif isinstance(event, CallBegin):
            yield from self._close("completed")
            call_id = f"call_{uuid4().hex[:24]}"
            yield from self._begin(_Open("call", f"fc_{uuid4().hex}", name=event.name, call_id=call_id))
        elif isinstance(event, CallArguments):
            name = "response.function_call_arguments.delta"
            yield from self._delta(ResponseFunctionCallArgumentsDeltaEvent, name, event.text)
        else:
            yield from self._close("completed")
        self._pending.clear()

    def _switch(self, kind: Literal["message", "reasoning"], prefix: str) -> Iterator[Told]:
        if self._open is None or self._open.kind != kind:
            yield from self._close("completed")
            yield from self._begin(_Open(kind, f"{prefix}_{uuid4().hex}"))

    def _begin(self, item: _Open) -> Iterator[Told]:
        self._open = item
        added = {"output_index": len(self.items), "item": self._item(item, "in_progress", empty=True)}
        yield ResponseOutputItemAddedEvent, "response.output_item.added", added
        if item.kind == "message":
            part: BaseModel = self._part("", ())
        elif item.kind == "reasoning":
            part = AddedReasoning(type="reasoning_text", text="")
        else:
            return
        yield (
            ResponseContentPartAddedEvent,
            "response.content_part.added",
            self._where(item, content_index=0, part=part),
        )

    def _message_delta(self, text: str) -> Iterator[Told]:
        item = self._open
        if item is None:
            return
        item.text += text
        item.logprobs += self._pending
        logprobs = delta_logprobs(self._pending) if self._with_logprobs else []
        fields = self._where(item, content_index=0, delta=text, logprobs=logprobs)
        yield ResponseTextDeltaEvent, "response.output_text.delta", fields

    def _delta(self, kind: type[BaseModel], name: str, text: str, **more: Any) -> Iterator[Told]:
        if self._open is not None:
            self._open.text += text
            yield kind, name, self._where(self._open, delta=text, **more)

    def _close(self, status: Status) -> Iterator[Told]:
        item, self._open = self._open, None
        if item is None:
            return
        done = "response.content_part.done"
        if item.kind == "message":
            logprobs = done_logprobs(item.logprobs) if self._with_logprobs else []
            text = self._where(item, content_index=0, text=item.text, logprobs=logprobs)
            yield ResponseTextDoneEvent, "response.output_text.done", text
            part = self._part(item.text, item.logprobs)
            yield ResponseContentPartDoneEvent, done, self._where(item, content_index=0, part=part)
        elif item.kind == "reasoning":
            text = self._where(item, content_index=0, text=item.text)
            yield ResponseReasoningTextDoneEvent, "response.reasoning_text.done", text
            said = DoneReasoning(type="reasoning_text", text=item.text)
            yield ResponseContentPartDoneEvent, done, self._where(item, content_index=0, part=said)
        else:
            arguments = self._where(item, arguments=item.text, name=item.name)
            yield ResponseFunctionCallArgumentsDoneEvent, "response.function_call_arguments.done", arguments
        finished = self._item(item, status)
        index = {"output_index": len(self.items), "item": finished}
        self.items.append(finished)
        yield ResponseOutputItemDoneEvent, "response.output_item.done", index

    def _where(self, item: _Open, **fields: Any) -> dict[str, Any]:
        return {"item_id": item.id, "output_index": len(self.items), **fields}

    def _item(self, item: _Open, status: Status, *, empty: bool = False) -> OutputItem:
        if item.kind == "message":
            content: list[Any] = [] if empty else [self._part(item.text, item.logprobs)]
            return ResponseOutputMessage(id=item.id, type="message", role="assistant", status=status, content=content)
        if item.kind == "reasoning":
            said = [] if empty else [ReasoningContent(type="reasoning_text", text=item.text)]
            return ResponseReasoningItem(id=item.id, type="reasoning", summary=[], content=said, status=status)
        return ResponseFunctionToolCall(
            id=item.id, type="function_call", call_id=item.call_id, name=item.name, arguments=item.text, status=status
        )

    def _part(self, text: str, logprobs: Sequence[PositionLogprobs]) -> ResponseOutputText:
        said = item_logprobs(logprobs) if self._with_logprobs else []
        return ResponseOutputText(type="output_text", text=text, annotations=[], logprobs=said)
