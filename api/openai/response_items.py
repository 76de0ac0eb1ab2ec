"""Items of a conversation: from requests and answers into the store, and from the store to clients."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from uuid import uuid4

from openai.types.responses import (
    ResponseFunctionToolCall,
    ResponseFunctionToolCallItem,
    ResponseFunctionToolCallOutputItem,
    ResponseInputImage,
    ResponseInputMessageItem,
    ResponseInputText,
    ResponseItem,
    ResponseItemList,
    ResponseOutputItem,
    ResponseOutputMessage,
    ResponseOutputRefusal,
    ResponseOutputText,
    ResponseReasoningItem,
)
from openai.types.responses.response_input_content import ResponseInputContent
from openai.types.responses.response_output_message import Content
from openai.types.responses.response_reasoning_item import Content as ReasoningContent

from api.openai.response_inputs import FunctionCall, FunctionCallOutput, ReasoningInput, ReasoningText
from api.openai.response_store import Item
from api.openai.responses_request import InputImage, InputItem, InputMessage, InputText, OutputText, Refusal

_PREFIXES = {"message": "msg", "function_call": "fc", "function_call_output": "fco", "reasoning": "rs"}


def input_items(items: Iterable[InputItem]) -> tuple[Item, ...]:
    """A request's own items, under their own ids or new ones."""
    return tuple(
        Item(item.id if isinstance(item.id, str) and item.id else f"{_PREFIXES[item.type]}_{uuid4().hex}", item)
        for item in items
    )


def output_items(output: Iterable[ResponseOutputItem]) -> tuple[Item, ...]:
    """An answer's items, as input for the next."""
    items = []
    for item in output:
        if isinstance(item, ResponseOutputMessage):
            text = "".join(part.text for part in item.content if isinstance(part, ResponseOutputText))
            parts = (OutputText(type="output_text", text=text),)
            items.append(Item(item.id, InputMessage(role="assistant", content=parts)))
        elif isinstance(item, ResponseFunctionToolCall):
            call = FunctionCall(
                type="function_call", call_id=item.call_id, name=item.name, arguments=item.arguments, id=item.id
            )
            items.append(Item(item.id or f"fc_{uuid4().hex}", call))
        elif isinstance(item, ResponseReasoningItem):
            said = tuple(ReasoningText(type="reasoning_text", text=part.text) for part in item.content or ())
            items.append(Item(item.id, ReasoningInput(type="reasoning", id=item.id, content=said)))
    return tuple(items)


def item_page(items: Sequence[Item], *, after: str | None, limit: int, newest_first: bool) -> ResponseItemList:
    """One page of a listing; ``after`` is the last id of the page before, unknown ones give an empty page."""
    ordered = list(reversed(items)) if newest_first else list(items)
    if after is not None:
        places = [place for place, item in enumerate(ordered) if item.id == after]
        ordered = ordered[places[0] + 1 :] if places else []
    page = ordered[:limit]
    return ResponseItemList(
        object="list",
        data=[_shown(item) for item in page],
        first_id=page[0].id if page else "",
        last_id=page[-1].id if page else "",
        has_more=len(ordered) > len(page),
    )


def _shown(item: Item) -> ResponseItem:
    message = item.message
    if not isinstance(message, InputMessage):
        return _shown_other(item.id, message)
    parts = (
        (InputText(type="input_text", text=message.content),) if isinstance(message.content, str) else message.content
    )
    if message.role == "assistant":
        said: list[Content] = [_said(part) for part in parts]
        return ResponseOutputMessage(id=item.id, type="message", role="assistant", status="completed", content=said)
    asked: list[ResponseInputContent] = [_asked(part) for part in parts]
    return ResponseInputMessageItem(id=item.id, type="message", role=message.role, status="completed", content=asked)


def _shown_other(item_id: str, item: FunctionCall | FunctionCallOutput | ReasoningInput) -> ResponseItem:
    if isinstance(item, FunctionCall):
        return ResponseFunctionToolCallItem(
            id=item_id,
            type="function_call",
            call_id=item.call_id,
            name=item.name,
            arguments=item.arguments,
            status="completed",
        )
    if isinstance(item, FunctionCallOutput):
        return ResponseFunctionToolCallOutputItem(
            id=item_id, type="function_call_output", call_id=item.call_id, output=item.text, status="completed"
        )
    said = [ReasoningContent(type="reasoning_text", text=part.text) for part in item.content or ()]
    return ResponseReasoningItem(id=item_id, type="reasoning", summary=[], content=said)


def _said(part: InputText | InputImage | OutputText | Refusal) -> Content:
    if isinstance(part, Refusal):
        return ResponseOutputRefusal(type="refusal", refusal=part.refusal)
    text = part.text if not isinstance(part, InputImage) else ""
    return ResponseOutputText(type="output_text", text=text, annotations=[])


def _asked(part: InputText | InputImage | OutputText | Refusal) -> ResponseInputContent:
    if isinstance(part, InputImage):
        return ResponseInputImage(type="input_image", image_url=part.image_url, detail=part.detail or "auto")
    return ResponseInputText(type="input_text", text=part.refusal if isinstance(part, Refusal) else part.text)
