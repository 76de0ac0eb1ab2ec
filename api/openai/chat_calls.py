"""An answer's parts in the form of chat completions: messages, and the deltas of a stream."""

from __future__ import annotations

from typing import Any

from openai.types.chat import ChatCompletionMessage
from openai.types.chat.chat_completion_chunk import ChoiceDelta, ChoiceDeltaToolCall, ChoiceDeltaToolCallFunction
from openai.types.chat.chat_completion_message_function_tool_call import (
    ChatCompletionMessageFunctionToolCall,
    Function,
)

from api.openai.answers import Answer
from api.openai.tool_parsers import CallArguments, CallBegin, Event, Reasoning, Text


def chat_message(answer: Answer) -> ChatCompletionMessage:
    """The assistant's message. ``reasoning_content`` is vLLM's and DeepSeek's field beside OpenAI's."""
    extra: dict[str, Any] = {"reasoning_content": answer.reasoning} if answer.reasoning else {}
    if answer.calls:
        extra["tool_calls"] = [
            ChatCompletionMessageFunctionToolCall(
                id=call.id, type="function", function=Function(name=call.name, arguments=call.arguments)
            )
            for call in answer.calls
        ]
    content = None if answer.calls and not answer.text else answer.text
    return ChatCompletionMessage(role="assistant", content=content, refusal=None, **extra)


def chat_delta(event: Event, answer: Answer) -> ChoiceDelta | None:
    """What a stream says of an event, which is added to ``answer``; nothing for the end of a call."""
    answer.add(event)
    if isinstance(event, Text):
        return ChoiceDelta(content=event.text)
    if isinstance(event, Reasoning):
        extra: dict[str, Any] = {"reasoning_content": event.text}
        return ChoiceDelta(**extra)
    if isinstance(event, CallBegin):
        function = ChoiceDeltaToolCallFunction(name=event.name, arguments="")
        call = ChoiceDeltaToolCall(
            index=event.index, id=answer.calls[event.index].id, type="function", function=function
        )
        return ChoiceDelta(tool_calls=[call])
    if isinstance(event, CallArguments):
        function = ChoiceDeltaToolCallFunction(arguments=event.text)
        return ChoiceDelta(tool_calls=[ChoiceDeltaToolCall(index=event.index, function=function)])
    return None
