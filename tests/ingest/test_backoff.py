"""When a lost camera is tried again."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from ingest.backoff import AUTH_DELAY_S, Backoff


def test_delays_double_up_to_the_cap():
    backoff = Backoff(uniform=lambda low, high: low / 0.8)

    assert [round(backoff.next_delay(), 6) for _ in range(8)] == [1, 2, 4, 8, 16, 30, 30, 30]
    backoff.reset()
    assert backoff.next_delay() == 1


@given(st.integers(0, 2**32))
def test_r07_never_gives_up_and_never_waits_longer_than_the_cap(seed):
    backoff = Backoff(uniform=random.Random(seed).uniform)

    delays = [backoff.next_delay() for _ in range(200)]

    assert all(0.8 <= delay <= 30 for delay in delays)
    assert min(delays[10:]) >= 24
    assert len(set(delays)) > 100, "jitter"


@given(st.integers(0, 2**32))
def test_r12_refused_credentials_wait_at_least_a_minute(seed):
    backoff = Backoff(uniform=random.Random(seed).uniform)

    assert all(AUTH_DELAY_S <= backoff.next_delay(auth=True) <= 1.2 * AUTH_DELAY_S for _ in range(20))
