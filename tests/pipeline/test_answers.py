"""R53: answers as servers and models really give them, down to words and attributes."""

from __future__ import annotations

import json
import time

import pytest

from pipeline.answers import AnswerForm, NoWords, read_object, read_text, thoughts_over, words_so_far
from pipeline.config.output_schema import DEFAULT_OUTPUT_SCHEMA

SEEN = {
    "description": "A person in a red coat.",
    "upper": {"kind": "coat", "colours": ["red"]},
    "lower": {"kind": "unknown", "colours": ["unknown"]},
    "carried": ["umbrella"],
    "posture": "walking",
    "activity": "crossing the yard",
    "confidence": "high",
}
ATTRIBUTES = {name: value for name, value in SEEN.items() if name != "description"}
WHOLE = json.dumps(SEEN)


def read(raw: str):
    return read_object(raw, DEFAULT_OUTPUT_SCHEMA)


def test_an_object_that_fits_is_words_and_attributes():
    answer = read(WHOLE)
    assert (answer.words, answer.attributes, answer.form) == (SEEN["description"], ATTRIBUTES, AnswerForm.VALID)


@pytest.mark.parametrize(
    ("wrapped", "form"),
    [
        (f"```json\n{WHOLE}\n```", AnswerForm.REPAIRED),
        (f"```\n{WHOLE}\n```\n", AnswerForm.REPAIRED),
        (f"Sure! Here is the JSON you asked for:\n{WHOLE}\nLet me know if you need more.", AnswerForm.REPAIRED),
        (WHOLE + WHOLE, AnswerForm.REPAIRED),
        (WHOLE + "\n" + json.dumps(SEEN | {"description": "Another."}), AnswerForm.REPAIRED),
        (f"<think>Is it {{red}}?</think>\n\n{WHOLE}", AnswerForm.VALID),
        (f"It could be red, I say.</think>{WHOLE}", AnswerForm.VALID),
        (f"<thinking>\nhm\n</thinking>{WHOLE}", AnswerForm.VALID),
        (f"[{WHOLE}]", AnswerForm.REPAIRED),
    ],
)
def test_r53_what_is_around_the_object_does_not_matter(wrapped, form):
    answer = read(wrapped)
    assert (answer.words, answer.attributes, answer.form) == (SEEN["description"], ATTRIBUTES, form)


@pytest.mark.parametrize("length", range(len('{"description": "A'), len(WHOLE), 7))
def test_r53_an_object_cut_at_max_tokens_is_read_as_far_as_it_goes(length):
    answer = read(WHOLE[:length])
    assert SEEN["description"].startswith(answer.words) and answer.words
    assert answer.form is AnswerForm.REPAIRED
    for name, value in (answer.attributes or {}).items():
        # A text that was cut in the middle is one that fits; a list may lack its end.
        assert ATTRIBUTES[name] == value or str(ATTRIBUTES[name]).startswith(str(value).rstrip("]'")), name


@pytest.mark.parametrize(
    ("raw", "words", "attributes"),
    [
        ('{"description": "A\nperson", "posture": "walking",}', "A person", {"posture": "walking"}),
        ('{"description": "A person", "posture": "walking", // sure\n "confidence": "low"}', "A person", None),
        ('{"description": "A person", "posture": "hovering", "confidence": "low"}', "A person", {"confidence": "low"}),
        ('{"description": "A person", "age": 40, "sex": "m"}', "A person", None),
        ('{"description": "A person", "carried": "a bag"}', "A person", None),
        ('{"description": "A person", "upper": {"kind": "coat", "colours": ["azure"]}}', "A person", None),
        ('{"description": "A \\u0000 \\ud800 person"}', "A \N{REPLACEMENT CHARACTER} ? person", None),
    ],
)
def test_what_does_not_fit_the_schema_is_left_out_and_the_words_stay(raw, words, attributes):
    answer = read(raw)
    assert (answer.words, answer.form) == (words, AnswerForm.REPAIRED)
    if attributes is not None:
        assert answer.attributes == attributes
    else:
        assert set(answer.attributes or {}) <= {"posture"}


def test_the_same_thing_twice_in_a_list_is_one():
    twice = json.dumps(SEEN | {"carried": ["bag", "bag"]})
    assert read(twice).attributes["carried"] == ["bag"]


def test_r53_plain_words_where_an_object_was_asked_for_are_the_words():
    for raw in ("A person in a red coat.", "<think>JSON?</think>A person in a red coat.", "A person by a {sign}, red."):
        answer = read(raw)
        assert (answer.attributes, answer.form) == (None, AnswerForm.TEXT)
        assert answer.words.startswith("A person")


WORDLESS = ["", "  \n", "<think>red {", "</think>", "```json\n```", "{}", '{"desc', "{" * 60000, '{"upper": {}}']
WORDLESS += ['{"description": ""}', '{"description": 5}', '{"description": null}']


@pytest.mark.parametrize("raw", WORDLESS)
def test_r53_r56_an_answer_without_words_is_none(raw):
    with pytest.raises(NoWords):
        read(raw)


def test_text_answers_lose_their_thoughts_only():
    assert read_text("<think>hm</think> A person. {odd}").words == "A person. {odd}"
    with pytest.raises(NoWords):
        read_text("<think>still thinking")


def test_words_are_known_as_they_come():
    seen = [words_so_far(WHOLE[:length]) for length in range(len(WHOLE) + 1)]
    assert seen[0] == seen[10] == ""
    grown = list(dict.fromkeys(seen))
    assert grown == [
        SEEN["description"][:n]
        for n in range(len(SEEN["description"]) + 1)
        if n != 2 and n != 9 and SEEN["description"][:n].strip() == SEEN["description"][:n]
    ]
    assert words_so_far('{"description": "caf\\u00e9 \\u00') == "café"
    assert words_so_far("```json\n" + WHOLE) == SEEN["description"]
    assert words_so_far("<think>{") == "" == thoughts_over("<think>so")
    assert thoughts_over("<think>so</think>A pers") == "A pers"


@pytest.mark.parametrize("hostile", ["<think>" * 9000, "{" * 64000, '{"a":' * 12000, "[" * 64000, "```" * 20000])
def test_no_answer_takes_long_to_read(hostile):
    start = time.process_time()
    for reader in (read, words_so_far):
        try:
            reader('{"description": "x", "carried": ' + hostile)
            reader(hostile)
        except NoWords:
            pass
    assert time.process_time() - start < 2
