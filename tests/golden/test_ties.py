"""How the golden comparison treats a difference: fails, unless the reference itself is undecided; then it counts."""

from __future__ import annotations

import pytest

from tests.golden.harness import TIE, Comparisons, assert_same


def test_equal_tokens_are_counted_and_are_no_ties():
    compared = Comparisons()
    assert_same([1, 2, 3], ([1, 2, 3], [0.0, 1.0, 2.0]), compared)
    assert compared == Comparisons(tokens=3, ties=0)


def test_a_difference_where_the_reference_is_sure_fails():
    with pytest.raises(AssertionError, match=r"token 1: 9 instead of 2, logits 0\.000200 apart"):
        assert_same([1, 9, 3], ([1, 2, 3], [1.0, 2 * TIE, 1.0]), Comparisons())


def test_a_difference_at_a_tie_counts_and_ends_the_comparison():
    compared = Comparisons()
    assert_same([1, 9, 8], ([1, 2, 3], [1.0, TIE / 2, 1.0]), compared)
    assert compared == Comparisons(tokens=2, ties=1)


def test_an_output_of_another_length_fails():
    with pytest.raises(ValueError, match=r"shorter|longer"):
        assert_same([1, 2], ([1, 2, 3], [1.0, 1.0, 1.0]), Comparisons())
