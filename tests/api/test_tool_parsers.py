"""Tool calls and reasoning out of text: however it is cut into pieces, the same comes out."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from api.openai.answers import Answer, AnswerReader
from api.openai.dialects import dialect_of
from api.openai.tool_parsers import (
    CallArguments,
    CallBegin,
    CallEnd,
    HermesParser,
    JsonParser,
    PythonicParser,
    Text,
    merged,
)
from tests.checkpoints import SHARED
from vlm_engine.detokenizer import Detokenizer
from vlm_engine.thinking import Thinking

PARSERS = {"hermes": HermesParser, "json": JsonParser, "pythonic": PythonicParser}
NAMES = ("f", "get_weather")


def call(index: int, name: str, arguments: str) -> list:
    return [CallBegin(index, name), CallArguments(index, arguments), CallEnd(index)]


def parse(kind: str, *pieces: str) -> list:
    parser = PARSERS[kind](NAMES)
    events = [event for piece in pieces for event in parser.add(piece)]
    return merged([*events, *parser.finish()])


@pytest.mark.parametrize(
    ("kind", "text", "events"),
    [
        ("hermes", '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>', call(0, "f", '{"a": 1}')),
        (
            "hermes",
            'Sure. \n<tool_call>\n{"name": "f", "arguments": {"a": "}<\\""}}\n</tool_call>\n'
            '<tool_call>{"arguments": {"b": [{}]}, "name": "get_weather"}</tool_call>\n',
            [Text("Sure."), *call(0, "f", '{"a": "}<\\""}'), *call(1, "get_weather", '{"b": [{}]}')],
        ),
        (
            "hermes",
            '<tool_call>[{"name": "f"}, {"name": "f", "arguments": {}}]</tool_call>',
            [*call(0, "f", "{}"), *call(1, "f", "{}")],
        ),
        ("hermes", "a < b <tool and more", [Text("a < b <tool and more")]),
        ("hermes", '<tool_call>{"name": "nobody"}</tool_call>', [Text('<tool_call>{"name": "nobody"}</tool_call>')]),
        ("hermes", "<tool_call> well </tool_call>", [Text("<tool_call> well </tool_call>")]),
        ("hermes", "\n \n", [Text("\n \n")]),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1', call(0, "f", '{"a": 1')),
        ("hermes", '<tool_call>{"name": "f', [Text('<tool_call>{"name": "f')]),
        (
            "json",
            ' {"name": "f", "parameters": {"a": 1}}; {"name": "f", "parameters": {}}',
            [*call(0, "f", '{"a": 1}'), *call(1, "f", "{}")],
        ),
        ("json", '{"temperature": 3}', [Text('{"temperature": 3}')]),
        ("json", 'No {"name": "f"}', [Text('No {"name": "f"}')]),
        (
            "pythonic",
            '[f(a=1, b={"c": [True, None]}), get_weather(city="]")]',
            [*call(0, "f", '{"a": 1, "b": {"c": [true, null]}}'), *call(1, "get_weather", '{"city": "]"}')],
        ),
        ("pythonic", "[1, 2]", [Text("[1, 2]")]),
        ("pythonic", "[f(__import__('os').getcwd())]", [Text("[f(__import__('os').getcwd())]")]),
        ("pythonic", "[f(a=1)", [Text("[f(a=1)")]),
        ("pythonic", "[" * 3000, [Text("[" * 3000)]),
    ],
)
def test_calls_and_text_are_told_apart(kind, text, events):
    assert parse(kind, text) == events
    assert parse(kind, *text) == events


_fragments = st.sampled_from([
    "<tool_call>", "</tool_call>", "\n", " ", '{"name": "f", "arguments": {"x": "<tool_call>"}}', '{"name": "f"',
    "}", "{", '"', "\\", "[", "]", "f(a=1)", ", ", ";", '"arguments": {}', ":", "hello", "<", "é", "<think>",
    "</think>", "<th",
])  # fmt: skip
_texts = st.lists(_fragments, max_size=14).map("".join)


@st.composite
def texts_in_pieces(draw):
    text = draw(_texts)
    cuts = sorted(draw(st.sets(st.integers(0, len(text)), max_size=12)))
    return text, [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]


@settings(max_examples=300, deadline=None)
@given(texts_in_pieces(), st.sampled_from(sorted(PARSERS)), st.sampled_from([None, Thinking(), Thinking(open=True)]))
def test_pieces_give_what_the_whole_gives(text_and_pieces, kind, thinking):
    text, pieces = text_and_pieces

    def read(*parts):
        reader = AnswerReader(thinking, PARSERS[kind](NAMES), True)
        events = [event for part in parts for event in reader.add(part)]
        return merged([*events, *reader.finish()])

    whole = read(text)
    assert read(*pieces) == whole
    begun = [event.index for event in whole if isinstance(event, CallBegin)]
    assert begun == [event.index for event in whole if isinstance(event, CallEnd)] == list(range(len(begun)))


@settings(max_examples=25, deadline=None)
@given(st.dictionaries(st.text(max_size=5), st.recursive(st.none() | st.text(max_size=8) | st.integers(), st.lists)))
def test_any_arguments_come_through(arguments):
    whole = json.dumps({"name": "f", "arguments": arguments})
    [_, given_back, _] = parse("hermes", *f"<tool_call>\n{whole}\n</tool_call>")
    assert json.loads(given_back.text) == arguments


# Reasoning ------------------------------------------------------------------------------------------------------------


def read(text: str, thinking: Thinking | None) -> Answer:
    reader = AnswerReader(thinking, None, True)
    return Answer.of([*reader.add(text), *reader.finish()])


@pytest.mark.parametrize(
    ("text", "thinking", "reasoning", "answer"),
    [
        ("<think>\nHm, so.\n</think>\n\nYes.", Thinking(), "Hm, so.", "Yes."),
        ("Hm.\n</think>\n\nYes.", Thinking(open=True), "Hm.", "Yes."),
        ("Yes <think>no</think>", Thinking(), "", "Yes <think>no</think>"),
        ("<think>never ends", Thinking(), "never ends", ""),
        ("<thin", Thinking(), "", "<thin"),
        ("<think>a</think>b</think>", Thinking(), "a", "b</think>"),
        ("<think>a</think>", None, "", "<think>a</think>"),
    ],
)
def test_reasoning_is_set_apart(text, thinking, reasoning, answer):
    got = read(text, thinking)
    assert (got.reasoning, got.text) == (reasoning, answer)


class Letters:
    """A tokenizer of one character a token."""

    def decode(self, ids, **options):
        return "".join(map(chr, ids))


@pytest.mark.parametrize(
    ("text", "thinking", "out"),
    [
        ("<think>one STOP two</think>three STOP four", Thinking(), "<think>one STOP two</think>three "),
        ("one STOP two</think>three STOP four", Thinking(open=True), "one STOP two</think>three "),
        ("one STOP two", Thinking(), "one "),
        ("one STOP two", None, "one "),
        ("<think>ST</think>OP", Thinking(), "<think>ST</think>OP"),
    ],
)
def test_e3_stop_strings_are_looked_for_in_the_answer_and_not_in_the_reasoning(text, thinking, out):
    detokenizer = Detokenizer(Letters(), ["STOP"], False, True, thinking)
    got = ""
    for char in text:
        piece = detokenizer.add(ord(char))
        got += piece.text
        if piece.stop:
            break
    else:
        got += detokenizer.finish().text
    assert got == out


# Families -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("template", "form", "knows_tools", "thinks"),
    [
        (None, "hermes", False, False),
        ("{% for message in messages %}{{ message['content'] }}{% endfor %}", "hermes", False, False),
        ("{% if tools %}<tool_call>{% endif %}</think>", "hermes", True, True),
        ("{% if tools %}<|python_tag|>{% endif %}", "llama3_json", True, False),
        ("{% if tools %}[func_name1(params_name1=params_value1)]{% endif %}", "pythonic", True, False),
    ],
)
def test_a_chat_template_tells_the_dialect(template, form, knows_tools, thinks):
    dialect = dialect_of(template)
    assert (dialect.tool_format, dialect.knows_tools, dialect.thinking is not None) == (form, knows_tools, thinks)


def test_dialects_of_the_tested_checkpoints(shared_data):
    qwen3 = dialect_of((SHARED / "vlm" / "qwen3-vl-2b" / "chat_template.jinja").read_text())
    assert qwen3.tool_format == "hermes" and qwen3.knows_tools and qwen3.thinking is None
    for name in ("smolvlm-256m", "qwen2.5-vl-3b"):
        template = json.loads((SHARED / "vlm" / name / "chat_template.json").read_text())["chat_template"]
        assert dialect_of(template).tool_format == "hermes" and not dialect_of(template).knows_tools


def test_how_a_prompt_ends_tells_whether_reasoning_has_begun():
    dialect = dialect_of("</think>")
    assert dialect.thinking_after("assistant\n<think>\n") == Thinking(open=True)
    assert dialect.thinking_after("assistant\n") == Thinking()
    assert dialect.thinking_after("assistant\n<think>\n\n</think>\n\n") is None
    assert dialect_of(None).thinking_after("<think>") is None
