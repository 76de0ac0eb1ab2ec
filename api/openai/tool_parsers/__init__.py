"""Tool calls out of a model's text, as it streams in: three ways of writing them.

Parsers work character by character, so that the same text gives the same calls however it was cut into pieces. What
turns out not to be a call of an offered tool is text.
"""

from api.openai.tool_parsers.base import ToolParser
from api.openai.tool_parsers.events import CallArguments, CallBegin, CallEnd, Event, Reasoning, Text, merged
from api.openai.tool_parsers.hermes import HermesParser
from api.openai.tool_parsers.llama_json import JsonParser
from api.openai.tool_parsers.pythonic import PythonicParser

__all__ = [
    "CallArguments",
    "CallBegin",
    "CallEnd",
    "Event",
    "HermesParser",
    "JsonParser",
    "PythonicParser",
    "Reasoning",
    "Text",
    "ToolParser",
    "merged",
]
