"""Prompts and schemas in the configuration file: what is taken, and what somebody reads whose own is not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.config.engine import DescriberConfig
from pipeline.config.load import ConfigProblem, load_config
from pipeline.config.output_schema import DEFAULT_OUTPUT_SCHEMA, MAX_SCHEMA_BYTES

WORDS = {"description": {"type": "string"}}
VEST = {"type": "object", "properties": {"vest": {"enum": ["yes", "no"]}, **WORDS}, "required": ["description", "vest"]}


def load(folder: Path, config: dict, environ: dict[str, str] | None = None):
    path = folder / "watchword.yaml"
    path.write_text(json.dumps(config))
    return load_config(path, environ or {})


def problem(folder: Path, config: dict) -> str:
    with pytest.raises(ConfigProblem) as caught:
        load(folder, config)
    [only] = caught.value.problems
    return only.text


def describer(folder: Path, schema) -> str:
    return problem(folder, {"describer": {"output_schema": schema}})


def schema_with(**changes) -> dict:
    return {"type": "object", "properties": WORDS, "required": ["description"]} | changes


def test_a_schema_stands_in_the_file_or_in_one_of_its_own(tmp_path):
    here = load(tmp_path, {"describer": {"output_schema": VEST}}).describer.output_schema
    for name, text in (("s.json", json.dumps(VEST)), ("s.yaml", "# mine\n" + json.dumps(VEST, indent=1))):
        (tmp_path / name).write_text(text)
        assert load(tmp_path, {"describer": {"output_schema": str(tmp_path / name)}}).describer.output_schema == here
    assert load(tmp_path, {}, {"WATCHWORD_DESCRIBER__OUTPUT_SCHEMA": json.dumps(VEST)}).describer.output_schema == here
    assert list(here["properties"]) == ["description", "vest"]
    camera = {"id": "a", "url": "rtsp://h/1", "output_schema": VEST}
    assert load(tmp_path, {"cameras": [camera]}).cameras[0].output_schema == here


def test_our_own_schema_is_one_that_is_taken():
    assert DescriberConfig(output_schema=dict(DEFAULT_OUTPUT_SCHEMA)).output_schema == DEFAULT_OUTPUT_SCHEMA


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ([], "a schema is an object, not a list"),
        (schema_with(type="array"), '"type" is "array", must be "object"'),
        ({"type": "object"}, '"properties" is missing'),
        ({"type": "object", "properties": {"a": {"type": "string"}}}, "needs 'description' of type string"),
        ({"type": "object", "properties": WORDS}, "\"required\" must list 'description'"),
        (schema_with(properties=WORDS | {"a:b": {}}), "'a:b' is no name of an attribute: 1 to 60 characters"),
        (schema_with(properties=WORDS | {f"p{n}": {} for n in range(32)}), "it has 33 properties, at most 32"),
        (schema_with(properties=WORDS | {"a": {"type": "sting"}}), "it can't be enforced: Invalid type: sting"),
        (schema_with(properties=WORDS | {"a": {"uniqueItems": True, "type": "array"}}), 'Unimplemented keys: ["uniq'),
        (schema_with(properties=WORDS | {"a": {"type": "string", "pattern": "("}}), "regex parse error"),
        (schema_with(properties=WORDS | {"a": {"$ref": "http://example.com/x"}}), "it can't be enforced"),
        (schema_with(title="x" * MAX_SCHEMA_BYTES), f"bytes as JSON; at most {MAX_SCHEMA_BYTES}"),
        ("/nowhere/schema.yaml", "the file /nowhere/schema.yaml can't be read: No such file or directory"),
    ],
)
def test_a_schema_that_cannot_be_used_is_named_with_its_limit(tmp_path, schema, said):
    text = describer(tmp_path, schema)
    assert text.startswith("describer.output_schema") and said in text


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("a: [1", "line 1 is neither YAML nor JSON"),
        ("a: &x [1, 2]\nb: [*x, *x]\n", "has aliases"),
        ("#" * (MAX_SCHEMA_BYTES * 8 + 1), "is longer than"),
        ("- 1\n", "a schema is an object, not a list"),
        ("[" * 2_000, "is neither YAML nor JSON"),
    ],
)
def test_a_schema_file_that_is_none(tmp_path, content, said):
    path = tmp_path / "schema.yaml"
    path.write_text(content)
    assert said in describer(tmp_path, str(path))


def test_the_camera_that_has_the_wrong_schema_is_named(tmp_path):
    cameras = [{"id": "a", "url": "rtsp://h/1"}, {"id": "b", "url": "rtsp://h/2", "output_schema": {"type": "object"}}]
    assert problem(tmp_path, {"cameras": cameras}) == 'cameras[1].output_schema: "properties" is missing'


@pytest.mark.parametrize("field", ["describer.prompt", "cameras[0].prompt"])
def test_an_unknown_placeholder_is_an_error_with_the_names_there_are(tmp_path, field):
    template = "Who is at {camera} in {zone}? {{braces}} and {} mean themselves."
    camera = {"id": "a", "url": "rtsp://h/1"}
    config = {"describer": {"prompt": template}} if field == "describer.prompt" else {
        "cameras": [camera | {"prompt": template}]}  # fmt: skip
    text = problem(tmp_path, config)
    assert text.startswith(f"{field} is ")
    assert text.endswith(
        "unknown placeholder {zone}; allowed are {camera}, {camera_id}, {label}, {zones}, {time}; did you mean {zones}?"
    )
    assert "at most 4000 characters" in problem(tmp_path, {"describer": {"prompt": "x" * 4001}})
