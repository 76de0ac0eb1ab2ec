"""Structured output as clients ask for it: OpenAI's ``response_format`` and ``text.format``, and vLLM's extras."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from api.errors import invalid
from api.openai.fields import StrictModel
from vlm_engine.structured import StructuredOutput

MAX_PATTERN = 128 * 1024
ANY_OBJECT = '{"type": "object"}'

Pattern = Annotated[str, Field(max_length=MAX_PATTERN)]
Choices = Annotated[tuple[Annotated[str, Field(max_length=10_000)], ...], Field(min_length=1, max_length=4096)]
Schema = dict[str, Any]


class TextFormat(StrictModel):
    type: Literal["text"]


class JsonObjectFormat(StrictModel):
    type: Literal["json_object"]


class JsonSchema(StrictModel):
    """``strict: false`` lets keywords pass that can't be enforced; otherwise such a schema is refused."""

    name: str = Field(max_length=64)
    description: str | None = None
    schema_: Schema | None = Field(None, alias="schema")
    strict: bool | None = None


class JsonSchemaFormat(StrictModel):
    type: Literal["json_schema"]
    json_schema: JsonSchema


class FlatJsonSchemaFormat(StrictModel):
    """The form of the Responses API: the same, without the inner object."""

    type: Literal["json_schema"]
    name: str = Field(max_length=64)
    description: str | None = None
    schema_: Schema = Field(alias="schema")
    strict: bool | None = None


ChatFormat = Annotated[TextFormat | JsonObjectFormat | JsonSchemaFormat, Field(discriminator="type")]
ResponsesFormat = Annotated[TextFormat | JsonObjectFormat | FlatJsonSchemaFormat, Field(discriminator="type")]


class StructuredOutputs(StrictModel):
    """vLLM's ``structured_outputs``: one of them."""

    json_: Schema | str | None = Field(None, alias="json")
    regex: Pattern | None = None
    choice: Choices | None = None
    grammar: Pattern | None = Field(None, description="Lark, or GBNF (root ::= ...).")
    json_object: bool | None = None
    disable_any_whitespace: bool = Field(
        False, description="JSON on one line, with a space after each comma and colon and none elsewhere."
    )


class StructuredFields(StrictModel):
    """vLLM's extras for structured output, by their newer and their older names."""

    structured_outputs: StructuredOutputs | None = None
    guided_json: Schema | str | None = None
    guided_regex: Pattern | None = None
    guided_choice: Choices | None = None
    guided_grammar: Pattern | None = None


class TextOptions(StrictModel):
    """``text`` of the Responses API."""

    format: ResponsesFormat | None = None
    verbosity: Literal["medium"] | None = None


def wanted_structure(
    fields: StructuredFields, form: ChatFormat | ResponsesFormat | None, form_name: str
) -> tuple[StructuredOutput, str] | None:
    """What the answer must look like and the field that says so; None for free text.

    Args:
        fields: vLLM's extras.
        form: OpenAI's way of asking.
        form_name: the name of the field that holds it.

    Raises:
        ApiError: 400 when more than one field asks.
    """
    extra = fields.structured_outputs or StructuredOutputs()
    asked: dict[str, StructuredOutput | None] = {
        form_name: _of_format(form),
        "structured_outputs.json": _of_json(extra.json_, one_line=extra.disable_any_whitespace),
        "structured_outputs.json_object": (
            StructuredOutput("json_schema", ANY_OBJECT, one_line=extra.disable_any_whitespace)
            if extra.json_object
            else None
        ),
        "structured_outputs.regex": _of("regex", extra.regex),
        "structured_outputs.choice": _of_choice(extra.choice),
        "structured_outputs.grammar": _of("grammar", extra.grammar),
        "guided_json": _of_json(fields.guided_json),
        "guided_regex": _of("regex", fields.guided_regex),
        "guided_choice": _of_choice(fields.guided_choice),
        "guided_grammar": _of("grammar", fields.guided_grammar),
    }
    given = [(structure, name) for name, structure in asked.items() if structure is not None]
    if len(given) > 1:
        names = " and ".join(name for _, name in given)
        raise invalid(f"{names} ask for different answers; give one of them.", param=given[1][1])
    return given[0] if given else None


def _of_format(form: Any) -> StructuredOutput | None:
    if form is None or isinstance(form, TextFormat):
        return None
    if isinstance(form, JsonObjectFormat):
        return StructuredOutput("json_schema", ANY_OBJECT)
    schema: JsonSchema | FlatJsonSchemaFormat = form.json_schema if isinstance(form, JsonSchemaFormat) else form
    source = ANY_OBJECT if schema.schema_ is None else json.dumps(schema.schema_)
    return StructuredOutput("json_schema", source, lenient=schema.strict is False)


def _of_json(schema: Mapping[str, Any] | str | None, *, one_line: bool = False) -> StructuredOutput | None:
    if schema is None:
        return None
    source = schema if isinstance(schema, str) else json.dumps(schema)
    return StructuredOutput("json_schema", source, one_line=one_line)


def _of(kind: Literal["regex", "grammar"], source: str | None) -> StructuredOutput | None:
    return None if source is None else StructuredOutput(kind, source)


def _of_choice(choices: tuple[str, ...] | None) -> StructuredOutput | None:
    return None if choices is None else StructuredOutput("choice", json.dumps(choices))
