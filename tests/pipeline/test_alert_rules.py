"""Which events an alert rule matches, and what of an event is news."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
from pydantic import ValidationError

from pipeline.config import AlertRule
from pipeline.config.alerts import AlertTime
from pipeline.delivery.facts import Facts, Told, news_of
from pipeline.delivery.rules import Rules
from pipeline.messages import DescriptionState, EventState
from pipeline.reasons import Reason

BERLIN = ZoneInfo("Europe/Berlin")
SEEN = datetime(2026, 11, 27, 23, 0, tzinfo=BERLIN).timestamp()  # a Friday

FACTS = Facts(
    camera="front",
    label="person",
    zones=("porch", "path"),
    state=EventState.ACTIVE,
    description_state=DescriptionState.FINAL,
    description="A man in a dark-red Jäckchen, carrying Ann's “blue” bag.",
    attributes={"upper": {"colour": "dark red"}, "carrying": ["bag", "umbrella"], "hat": False},
    reason=Reason.NONE,
    first_seen=SEEN - 12,
    last_seen=SEEN,
)


def holds(facts: Facts = FACTS, **rule) -> bool:
    return bool(Rules([AlertRule(name="r", **rule)]).matching(facts))


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ({}, True),
        ({"cameras": ["front", "yard"]}, True),
        ({"cameras": ["yard"]}, False),
        ({"labels": ["dog"]}, False),
        ({"zones": ["path"]}, True),
        ({"zones": ["garden"]}, False),
        ({"min_duration_s": 12}, True),
        ({"min_duration_s": 12.5}, False),
        ({"words": {"any": ["JACKCHEN"]}}, True),  # case and diacritics
        ({"words": {"any": ["jäckchen"]}}, True),
        ({"words": {"any": ["dark red"]}}, True),  # a hyphen parts words
        ({"words": {"any": ["red dark"]}}, False),  # in their order
        ({"words": {"any": ['"blue" bag']}}, True),  # quotes say nothing
        ({"words": {"any": ["ann\N{RIGHT SINGLE QUOTATION MARK}s"]}}, True),
        ({"words": {"any": ["jack"]}}, False),  # whole words
        ({"words": {"any": ["jack*"]}}, True),
        ({"words": {"any": ["red jack*"]}}, True),
        ({"words": {"any": ["umbrella"]}}, True),  # attributes' values count, as in the search
        ({"words": {"any": ["cat", "bag"]}}, True),
        ({"words": {"all": ["cat", "bag"]}}, False),
        ({"words": {"all": ["man", "bag"], "none": ["umbrella"]}}, False),
        ({"words": {"none": ["dog"]}}, True),
        ({"attributes": {"upper.colour": "red"}}, True),  # one word of the value
        ({"attributes": {"upper.colour": "Dark-Red"}}, True),
        ({"attributes": {"upper.colour": "blue"}}, False),
        ({"attributes": {"carrying": "umbrella", "hat": "no"}}, True),
        ({"attributes": {"carrying": "umbrella", "hat": "yes"}}, False),
        ({"on": "ended"}, False),
    ],
)
def test_a_rule_holds_when_all_its_conditions_do(rule, expected):
    assert holds(**rule) is expected


def test_rules_about_words_wait_for_words_and_rules_about_ends_for_the_end():
    undescribed = replace(FACTS, description=None, description_state=DescriptionState.QUEUED)
    assert not holds(undescribed)
    assert holds(undescribed, on="started")
    assert holds(replace(undescribed, state=EventState.INTERRUPTED), on="ended")
    assert not holds(undescribed, on="ended", words={"none": ["dog"]})
    assert not holds(replace(FACTS, state=EventState.ENDED), on="ended", words={"any": ["dog"]})


def test_a_rule_that_is_known_to_match_is_not_named_again():
    rules = Rules([AlertRule(name="a"), AlertRule(name="b")])
    assert [rule.name for rule in rules.matching(FACTS)] == ["a", "b"]
    assert [rule.name for rule in rules.matching(FACTS, known=["a"])] == ["b"]


def at(day: int, hour: int, minute: int = 0) -> float:
    return datetime(2026, 11, day, hour, minute, tzinfo=BERLIN).timestamp()


def test_hours_over_midnight_belong_to_the_day_on_which_they_begin():
    friday_night = AlertTime(days=["fri"], start="22:00", end="06:00", timezone="Europe/Berlin")
    found = {
        (day, hour): friday_night.holds_at(at(day, hour)) for day in (26, 27, 28, 29) for hour in (5, 6, 21, 22, 23)
    }
    assert [when for when, inside in found.items() if inside] == [(27, 22), (27, 23), (28, 5)]


def test_hours_are_those_of_their_timezone():
    office = AlertTime(days=["mon"], start="9:00", end="17:00", timezone="America/New_York")
    # Monday, 14:30 in Berlin is 08:30 in New York.
    assert not office.holds_at(at(30, 14, 30)) and office.holds_at(at(30, 15)) and not office.holds_at(at(30, 23))
    assert AlertTime(timezone="UTC").holds_at(SEEN), "by default the whole day"


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"time": [{"timezone": "Mars/Olympus"}]}, "IANA"),
        ({"time": [{"start": "25:00"}]}, "00:00 to 24:00"),
        ({"time": [{"start": "24:30"}]}, "00:00 to 24:00"),
        ({"time": [{"days": ["someday"]}]}, "mon"),
        ({"words": {"any": ["!?"]}}, "no letter"),
        ({"on": "started", "words": {"any": ["red"]}}, "set on to described"),
        ({"on": "started", "attributes": {"a": "b"}}, "set on to described"),
        ({"name": "Ein Name"}, "pattern"),
        ({"colour": "red"}, "Extra"),
    ],
)
def test_a_rule_that_can_not_work_is_refused_when_it_is_read(change, text):
    with pytest.raises(ValidationError, match=text):
        AlertRule.model_validate({"name": "r", **change})


def test_a_time_without_quotes_that_yaml_read_as_a_number_is_the_time_that_was_meant():
    assert AlertTime(start=1320, end=1380) == AlertTime(start="22:00", end="23:00")


# -- news ------------------------------------------------------------------------------------------------------------


def walk(*steps: Facts) -> list[list[str]]:
    told: Told | None = None
    found = []
    for facts in steps:
        changes, told = news_of(told, facts)
        told = Told.from_json(told.to_json())  # as it is kept
        found.append(changes)
    return found


def test_r49_an_event_is_told_when_it_starts_is_described_early_and_for_good_and_ends():
    new = replace(FACTS, description=None, description_state=DescriptionState.QUEUED)
    draft = replace(FACTS, description_state=DescriptionState.DRAFT)
    final = replace(draft, description="Other words.", description_state=DescriptionState.FINAL, state=EventState.ENDED)
    later = replace(new, last_seen=SEEN + 5)
    assert walk(new, later, draft, draft, replace(draft, state=EventState.ENDED), final, final) == [
        ["started"], [], ["described"], [], ["ended"], ["described"], [],
    ]  # fmt: skip


def test_r56_a_failure_is_news_of_its_own_and_never_a_description():
    new = replace(FACTS, description=None, description_state=DescriptionState.QUEUED)
    failed = replace(new, description_state=DescriptionState.FAILED, reason=Reason.ENGINE_ERROR)
    again = replace(FACTS, description_state=DescriptionState.FINAL)
    assert walk(new, failed, failed, new, failed, again) == [["started"], ["failed"], [], [], ["failed"], ["described"]]


def test_an_event_that_was_given_up_and_goes_on_is_updated_and_ends_once_more():
    new = replace(FACTS, description=None, description_state=DescriptionState.QUEUED, zones=())
    interrupted = replace(new, state=EventState.INTERRUPTED)
    assert walk(new, interrupted, new, replace(new, zones=("path",)), interrupted) == [
        ["started"], ["ended"], ["updated"], ["updated"], ["ended", "updated"],
    ]  # fmt: skip
