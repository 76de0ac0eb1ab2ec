"""Words, tags and queries, without a database."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.store.search_text import (
    Query,
    Term,
    attribute_tag,
    first_number,
    read_query,
    tags_of,
    text_of,
    time_number,
    words_of,
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("A person in a Red coat.", ["a", "person", "in", "a", "red", "coat"]),
        ("Jäckchen JÄCKCHEN jackchen", ["jackchen"] * 3),
        ("Ja\u0308ckchen", ["jackchen"]),
        (
            "Straße STRASSE ﬁsh Ångström Łódź smørrebrød",
            ["strasse", "strasse", "fish", "angstrom", "lodz", "smorrebrod"],
        ),
        ("blue-white, don't 3.5 x2 ½", ["blue", "white", "don", "t", "3", "5", "x2", "1", "2"]),
        ("İstanbul", ["istanbul"]),
        ("赤いコート", ["赤いコート"]),
        ("_%^*\"'\0\ud800 ☃", []),
        ("w" * 100, ["w" * 64]),
    ],
)
def test_words_are_folded(text, words):
    assert words_of(text) == words


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("red coat", [Term(("red",)), Term(("coat",))]),
        ('"red coat" bag', [Term(("red", "coat")), Term(("bag",))]),
        ("„rote Jacke“", [Term(("rote", "jacke"))]),
        ('open "quote goes on', [Term(("open",)), Term(("quote", "goes", "on"))]),
        ("jack* -bag", [Term(("jack",), prefix=True), Term(("bag",), wanted=False)]),
        ('-"red coat"', [Term(("red", "coat"), wanted=False)]),
        ("blue-white", [Term(("blue", "white"))]),
        ("blue-wh*", [Term(("blue", "wh"), prefix=True)]),
        ('"jack*"', [Term(("jack",))]),
        ("AND NEAR(a b)", [Term(("and",)), Term(("near", "a")), Term(("b",))]),
        ("words:x", [Term(("words", "x"))]),
        ('* - " ^ ; --', []),
        ("a " * 100, [Term(("a",))] * 32),
    ],
)
def test_what_people_type_is_read_as_terms(text, terms):
    assert list(read_query(text).terms) == terms


def test_queries_in_both_languages():
    query = read_query('red "blue scarf" jack* -bag', ["c1"])
    assert query.as_fts5() == (
        'tags : "c1" AND words : "red" AND words : "blue scarf" AND words : "jack" * NOT words : "bag"'
    )
    assert query.as_tsquery() == "'c1':A & ('wred':D) & ('wblue':D <-> 'wscarf':D) & ('wjack':D*) & !('wbag':D)"
    assert Query().as_fts5() == 'tags : "e"', "everything"


@given(st.text(max_size=60))
def test_no_text_puts_syntax_into_a_query(text):
    query = read_query(text)
    words = [word for term in query.terms for word in term.words]
    assert all(word.isalnum() for word in words)
    assert re.sub(r"\w+", "", query.as_tsquery()).translate(str.maketrans("", "", "':()&!<->* ")) == ""


def test_attributes_have_tags_for_their_value_and_each_of_its_words():
    attributes = {
        "upper": {"garment": "rain coat", "Colour": "Dark Red"},
        "carries": ["bag", "umbrella"],
        "alone": True,
    }
    tags = tags_of("front", "person", "ended", ["Gate"], attributes).split()
    for path, value in (
        ("upper.colour", "dark red"),
        ("upper.colour", "RED"),
        ("upper.garment", "coat"),
        ("carries", "umbrella"),
        ("alone", "yes"),
    ):
        assert attribute_tag(path, value) in tags
    for path, value in (("upper.garment", "red"), ("lower.colour", "red"), ("carries", "scarf"), ("upper", "red")):
        assert attribute_tag(path, value) not in tags
    assert text_of("In red.", attributes) == "in red rain coat dark red bag umbrella yes"


@given(st.lists(st.floats(0, 4e9), min_size=2, max_size=2), st.text(min_size=1, max_size=20))
def test_numbers_are_in_the_order_of_time_and_fit_a_row_id(times, event_id):
    early, late = sorted(times)
    first, second = time_number(early, event_id), time_number(late, event_id)
    assert 0 <= first <= second < 2**63
    assert first_number(early) <= first < first_number(early + 0.002)
