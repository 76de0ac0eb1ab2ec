"""Text comes out piece by piece: whole characters, no part of a stop string."""

from __future__ import annotations

import pytest

from tests.vlm_engine.fake import FakeTokenizer
from vlm_engine.detokenizer import Detokenizer


class BytesTokenizer:
    """Every token is one byte, the hardest case for characters of several bytes."""

    def decode(self, ids, **options):
        return bytes(ids).decode("utf-8", errors="replace")


def feed(detokenizer, tokens):
    pieces = []
    for token in tokens:
        piece = detokenizer.add(token)
        pieces.append(piece)
        if piece.stop is not None:
            return pieces
    return [*pieces, detokenizer.finish()]


def text(pieces):
    return "".join(piece.text for piece in pieces)


@pytest.mark.parametrize("whole", ["plain", "Grüße aus Köln", "人が歩く", "👩‍👩‍👧 family", "e\u0301 combining"])
def test_never_half_a_character(whole):
    pieces = feed(Detokenizer(BytesTokenizer(), (), False, True), whole.encode())
    assert text(pieces) == whole
    assert all("\ufffd" not in piece.text for piece in pieces)


def test_an_unfinished_character_comes_out_as_replacement_at_the_end():
    pieces = feed(Detokenizer(BytesTokenizer(), (), False, True), b"ab" + "ü".encode()[:1])
    assert text(pieces) == "ab\ufffd"


@pytest.mark.parametrize("include", [False, True])
def test_e1_stop_string_split_over_tokens_is_found_and_not_leaked(include):
    pieces = feed(Detokenizer(BytesTokenizer(), ("END",), include, True), b"so it ENDs here")
    assert pieces[-1].stop == "END"
    assert text(pieces) == ("so it END" if include else "so it ")
    assert not any(piece.text.endswith(("E", "EN")) for piece in pieces)


def test_text_is_held_back_only_while_it_may_become_a_stop_string():
    detokenizer = Detokenizer(BytesTokenizer(), ("END",), False, True)
    assert [detokenizer.add(byte).text for byte in b"xENDE"[:2]] == ["x", ""]
    assert detokenizer.add(ord("x")).text == "Ex"


def test_what_is_held_back_comes_out_when_the_output_ends():
    pieces = feed(Detokenizer(BytesTokenizer(), ("END",), False, True), b"the EN")
    assert text(pieces) == "the EN"
    assert pieces[-1] == type(pieces[-1])("EN", None)


@pytest.mark.parametrize(
    ("stops", "expected", "stop"),
    [(("cd", "bc"), "a", "bc"), (("bcd", "bc"), "a", "bc"), (("d", "abcd"), "", "abcd"), (("zz", "e"), "abcd", "e")],
)
def test_of_several_stop_strings_the_one_complete_first_counts(stops, expected, stop):
    pieces = feed(Detokenizer(BytesTokenizer(), stops, False, True), b"abcdef")
    assert (text(pieces), pieces[-1].stop) == (expected, stop)


def test_a_stop_string_that_overlaps_itself():
    pieces = feed(Detokenizer(BytesTokenizer(), ("aab",), False, True), b"aaab!")
    assert (text(pieces), pieces[-1].stop) == ("a", "aab")


def test_one_token_may_hold_text_before_and_after_a_stop_string():
    class Wide(FakeTokenizer):
        def decode(self, ids, **options):
            return "".join(["well", " done STOP and", " more"][i] for i in ids)

    pieces = feed(Detokenizer(Wide(), ("STOP",), False, True), [0, 1, 2])
    assert (text(pieces), pieces[-1].stop) == ("well done ", "STOP")
