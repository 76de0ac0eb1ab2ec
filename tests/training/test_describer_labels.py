"""What is known of a person: colours by their names, tags, and the words that are made of them."""

from __future__ import annotations

import json

import jsonschema
import numpy as np
import pytest

from pipeline.config.output_schema import DEFAULT_OUTPUT_SCHEMA
from training.describer.evaluate import peta_concepts
from training.describer.labels import PROTOTYPES, colour_name, colour_of, concepts_of_tags, dye, dyed, lab_of
from training.describer.phrases import exchange, sentence, structured
from vlm_engine.families.nano_concepts import COLOURS, CONCEPTS, UNKNOWN

NAMES = list(CONCEPTS)


def told(concepts):
    return {name: CONCEPTS[name][index] for name, index in concepts.items() if index != UNKNOWN}


@pytest.mark.parametrize(
    ("bgr", "name"),
    [
        ((0, 0, 0), "black"),
        ((255, 255, 255), "white"),
        ((128, 128, 128), "grey"),
        ((30, 30, 200), "red"),
        ((20, 130, 250), "orange"),
        ((30, 220, 240), "yellow"),
        ((60, 140, 40), "green"),
        ((160, 60, 30), "blue"),
        ((130, 40, 100), "purple"),
        ((190, 150, 250), "pink"),
        ((30, 60, 100), "brown"),
    ],
)
def test_plain_colours_have_the_names_that_everybody_gives_them(bgr, name):
    pixel = lab_of(np.full((1, 1, 3), bgr, np.uint8))[0, 0]
    assert COLOURS[colour_name(*map(float, pixel))] == name


@pytest.mark.parametrize("name", COLOURS)
def test_a_dye_is_called_by_its_name_and_never_by_another(name):
    assert set(PROTOTYPES) == set(COLOURS)
    rng = np.random.default_rng(1)
    names = [colour_name(*dye(rng, name)) for _ in range(400)]
    assert {COLOURS[found] for found in names if found != UNKNOWN} == {name}
    assert names.count(UNKNOWN) < 120, "near a border there may be no name"


@pytest.mark.parametrize("name", ["white", "black", "red", "blue", "yellow"])
def test_dyed_cloth_measures_as_its_colour_and_the_rest_stays(name):
    rng = np.random.default_rng(2)
    image = rng.integers(60, 120, (64, 48, 3)).astype(np.uint8)
    image[:, :, 0] += 40
    where = np.zeros((64, 48), np.float32)
    where[16:48, 12:36] = 1.0
    out = dyed(image, where, dye(rng, name), rng)
    assert (out[:10] == image[:10]).all()
    assert COLOURS[colour_of(lab_of(out), where > 0.5)] == name


def test_cloth_of_many_colours_has_no_name():
    image = np.zeros((40, 40, 3), np.uint8)
    image[::2] = (255, 255, 255)
    image[:, ::3] = (0, 0, 255)
    assert colour_of(lab_of(image), np.ones((40, 40), np.bool_)) == UNKNOWN


def test_tags_say_what_is_worn_and_nothing_that_they_do_not():
    assert told(concepts_of_tags(["coat", "dress", "skin", "bag", "sunglasses"])) == {
        "upper_kind": "coat",
        "lower_kind": "dress",
        "sleeves": "long",
        "bag": "yes",
        "hat": "no",
        "sunglasses": "yes",
    }
    assert told(concepts_of_tags(["dress"]))["upper_kind"] == "dress"
    mixed = told(concepts_of_tags(["t-shirt", "jeans", "skirt"]))
    assert mixed["upper_kind"] == "t-shirt" and "lower_kind" not in mixed and "sleeves" not in mixed


def test_peta_says_the_same_in_its_own_words():
    concepts = dict(
        zip(NAMES, peta_concepts(["upperBodyRed", "lowerBodyBlue", "lowerBodyBlack", "lowerBodyJeans"]), strict=True)
    )
    assert told(concepts) == {"upper_colour": "red", "lower_kind": "jeans", "hat": "no", "sunglasses": "no"}
    bags = [
        dict(zip(NAMES, peta_concepts([tag]), strict=True))["bag"]
        for tag in ("carryingBackpack", "carryingNothing", "carryingOther")
    ]
    assert bags == [1, 0, UNKNOWN]


FACTS = {"upper_colour": "red", "upper_kind": "jacket", "lower_colour": "blue", "lower_kind": "jeans", "bag": "yes"}


def test_a_sentence_says_all_that_is_known():
    for seed in range(20):
        text = sentence(FACTS, np.random.default_rng(seed))
        assert "red jacket" in text and "blue jeans" in text and "a blue jeans" not in text and "bag" in text
        assert "hat" not in text and "sunglasses" not in text
    assert sentence({}, np.random.default_rng(0)) == "A person; the clothes can't be made out."
    dress = {"upper_kind": "dress", "lower_kind": "dress", "upper_colour": "green", "lower_colour": "green"}
    assert sentence(dress, np.random.default_rng(0)).count("dress") == 1


@pytest.mark.parametrize("facts", [FACTS, {}, {"lower_kind": "skirt"}, {"hat": "yes", "bag": "no"}])
def test_the_object_fits_the_describers_schema(facts):
    value = json.loads(structured(facts, np.random.default_rng(3)))
    jsonschema.validate(value, DEFAULT_OUTPUT_SCHEMA)
    assert value["upper"]["colours"] == [facts.get("upper_colour", "unknown")]
    assert value["carried"] == (["bag"] if facts.get("bag") == "yes" else [])


def test_answers_keep_to_the_facts_and_never_tell_sex_or_age():
    rng = np.random.default_rng(4)
    for _ in range(600):
        item = exchange(FACTS, rng)
        words = set(item.answer.lower().replace(".", " ").replace(",", " ").split())
        assert not words & {"man", "woman", "he", "she", "his", "her", "young", "old", "male", "female"}
        assert not words & (set(COLOURS) - {"red", "blue"}), item
