"""Sampling: every row by its own parameters, whoever else is in the batch."""

from __future__ import annotations

import random
from collections import Counter

import pytest
import torch

from vlm_engine import InvalidRequestError, SamplingParams
from vlm_engine.sampler import SamplingState, sample


def state(seed=0, prompt=(), end_ids=(), **params):
    return SamplingState(SamplingParams(**params), random.Random(seed), frozenset(prompt), frozenset(end_ids))


def rows(*values):
    return torch.tensor(values, dtype=torch.float32)


def test_greedy_takes_the_largest():
    got = sample(rows([0, 3, 1], [5, 0, 0]), [state(temperature=0.0), state(temperature=0.0)])
    assert [s.token for s in got] == [1, 0]


def test_draws_follow_the_softmax():
    logits = torch.log(rows([0.5, 0.3, 0.2]))
    one = state(seed=1)
    counts = Counter(sample(logits.clone(), [one])[0].token for _ in range(4000))
    for token, share in enumerate((0.5, 0.3, 0.2)):
        assert counts[token] / 4000 == pytest.approx(share, abs=0.03)


@pytest.mark.parametrize(
    ("params", "allowed"),
    [
        ({"top_k": 2}, {0, 1}),
        ({"top_p": 0.6}, {0, 1}),
        ({"top_p": 0.01}, {0}),
        ({"top_p": 5e-324}, {0}),  # less than float32 knows
        ({"min_p": 0.5}, {0, 1}),
        ({"top_k": 3, "top_p": 0.6}, {0, 1}),
        ({}, {0, 1, 2, 3}),
    ],
)
def test_truncation_keeps_exactly_the_most_likely(params, allowed):
    logits = torch.log(rows([0.45, 0.3, 0.15, 0.1]))
    one = state(seed=3, **params)
    assert {sample(logits.clone(), [one])[0].token for _ in range(400)} == allowed


def test_e20_a_seed_draws_the_same_alone_and_with_seven_batch_mates():
    torch.manual_seed(0)
    logits = torch.randn(20, 8, 50)
    alone, crowded = state(seed=7), state(seed=7)
    mates = [state(seed=i, temperature=0.0 if i % 2 else 1.3, top_k=i) for i in range(7)]
    first = [sample(step[:1].clone(), [alone])[0].token for step in logits]
    second = [sample(step.clone(), [crowded, *mates])[0].token for step in logits]
    assert first == second


def test_repetition_penalty_counts_prompt_and_output():
    one = state(temperature=0.0, repetition_penalty=2.0, prompt=[0])
    assert sample(rows([1.0, 0.9, 0.8, -1.0]), [one])[0].token == 1
    one.accept(1)
    assert sample(rows([1.0, 0.9, 0.8, -1.0]), [one])[0].token == 2


def test_presence_and_frequency_penalties_count_the_output_only():
    one = state(temperature=0.0, presence_penalty=0.5, frequency_penalty=0.25, prompt=[0])
    one.accept(0)
    one.accept(0)
    # 0.5 + 2 * 0.25 = 1.0 is taken off token 0.
    assert sample(rows([1.9, 1.0, 0.0]), [one])[0].token == 1
    assert sample(rows([2.1, 1.0, 0.0]), [one])[0].token == 0


def test_logit_bias_and_min_tokens():
    assert sample(rows([0.0, 1.0]), [state(temperature=0.0, logit_bias={0: 2.0})])[0].token == 0
    one = state(temperature=0.0, min_tokens=1, end_ids=[1])
    assert sample(rows([0.0, 1.0]), [one])[0].token == 0
    one.accept(0)
    assert sample(rows([0.0, 1.0]), [one])[0].token == 1


def test_logprobs_are_the_models_own():
    logits = rows([2.0, 1.0, 0.0], [0.0, 0.0, 9.0])
    got = sample(logits.clone(), [state(temperature=0.0, logprobs=2, logit_bias={2: 50.0}), state(temperature=0.0)])
    expected = torch.log_softmax(logits[0], -1)
    assert got[0].token == 2
    assert got[0].logprob == pytest.approx(float(expected[2]))
    assert [t for t, _ in got[0].top] == [0, 1]
    assert got[1].logprob is None


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", 0),
        ("max_tokens", -1),
        ("temperature", 2.5),
        ("temperature", float("nan")),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_k", -2),
        ("min_p", -0.1),
        ("n", 0),
        ("logprobs", 21),
        ("presence_penalty", 3.0),
        ("repetition_penalty", 0.0),
        ("stop", ("",)),
    ],
)
def test_parameters_outside_their_range_are_refused_by_name(field, value):
    with pytest.raises(InvalidRequestError) as error:
        SamplingParams(**{field: value})
    assert error.value.param == field
    assert field in str(error.value)


@pytest.mark.parametrize("params", [{"temperature": 5e-324}, {"temperature": 1e-5}, {"repetition_penalty": 1e-300}])
def test_the_smallest_numbers_are_no_reason_to_take_an_unlikely_token(params):
    states = [state(prompt=[1], seed=seed, **params) for seed in range(20)]
    got = sample(rows(*[[0.0, 60.0, -5.0]] * 20), states)
    assert {s.token for s in got} == {1}
