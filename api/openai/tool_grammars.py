"""Lark grammars for tool calls, so that their arguments always validate against the tools' schemas."""

from __future__ import annotations

import json
from collections.abc import Sequence

from api.openai.dialects import ToolFormat
from api.openai.tools import Tool
from vlm_engine.structured import StructuredOutput, bounded_schema, lark_string

HERMES_MARKERS = ("<tool_call>", "</tool_call>")
MAX_CALLS = 32
"""Calls in one answer, where calls are forced: a model that never stops calling would not end otherwise."""


def forced_calls(tools: Sequence[Tool], form: ToolFormat, *, parallel: bool) -> StructuredOutput:
    """One call of one of the tools, or several where they may be parallel."""
    most = MAX_CALLS if parallel else 1
    return _grammar([f"start: {_calls(form, most)}", *_call_rules(tools, form)], form)


def calls_or_json(
    tools: Sequence[Tool], form: ToolFormat, schema: StructuredOutput, *, parallel: bool
) -> StructuredOutput:
    """Calls, or an answer of the JSON schema."""
    answer = json.dumps(bounded_schema(json.loads(schema.source), lenient=schema.lenient))
    most = MAX_CALLS if parallel else 1
    rules = [f"start: {_calls(form, most)} | answer", f"answer: %json {answer}", *_call_rules(tools, form)]
    return _grammar(rules, form)


def text_or_calls(tools: Sequence[Tool], form: ToolFormat, *, parallel: bool) -> StructuredOutput:
    """Free text in which calls, wherever the model begins one, follow the schemas (``strict`` tools under "auto")."""
    rules = _call_rules(tools, form, enforced=False)
    if form == "hermes":
        # From the first opening tag on only a call can follow.
        start = f"start: (until_0 body){'*' if parallel else '?'} without_0"
    else:
        start = f"start: {_calls(form, MAX_CALLS if parallel else 1)} | TEXT\nTEXT: /([^{{\\s](.|\\n)*)?/"
    return _grammar([start, *rules], form)


def _grammar(rules: Sequence[str], form: ToolFormat) -> StructuredOutput:
    return StructuredOutput("grammar", "\n".join(rules), markers=HERMES_MARKERS if form == "hermes" else ())


def _calls(form: ToolFormat, most: int) -> str:
    separator = '"\\n"' if form == "hermes" else '"; "'
    return "one" if most == 1 else f"one ({separator} one){{0,{most - 1}}}"


def _call_rules(tools: Sequence[Tool], form: ToolFormat, *, enforced: bool = True) -> list[str]:
    """Rules ``one`` (a call with what stands around it) and ``call``.

    ``enforced``: what a schema asks for and can't be enforced is refused unless the tool says ``strict: false``; else
    only where it says ``strict: true``.
    """
    key = "arguments" if form == "hermes" else "parameters"
    around = ["one: mark_0 body", 'body: "\\n" call "\\n" mark_1'] if form == "hermes" else ["one: call"]
    rules = [*around, "call: " + " | ".join(f"call_{number}" for number in range(len(tools)))]
    for number, tool in enumerate(tools):
        head = lark_string(f'{{"name": {json.dumps(tool.name)}, "{key}": ')
        schema = json.dumps(
            bounded_schema(tool.schema, lenient=tool.strict is False or (tool.strict is None and not enforced))
        )
        rules += [f'call_{number}: {head} args_{number} "}}"', f"args_{number}: %json {schema}"]
    return rules
