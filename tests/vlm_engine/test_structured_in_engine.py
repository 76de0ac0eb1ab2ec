"""Structured output in a running engine: preemption, siblings, jump-forward."""

from __future__ import annotations

import re

import pytest
import torch

from tests.golden.harness import Harness, user
from tests.vlm_engine.test_structured import VOCABULARY
from vlm_engine import SamplingParams, StructuredOutput
from vlm_engine.outputs import RequestOutput
from vlm_engine.structured import GrammarCompiler


@pytest.mark.parametrize("pattern", [r"([a-f]{3} [0-9]{4}\n){9}", r"(name: [a-f]{3}, number: [0-9]{2}\n){6}"])
def test_a_grammar_goes_on_where_it_was_after_preemption_and_with_siblings(checkpoint, pattern):
    """Matcher state follows the output's tokens: preempted, recomputed, beside free requests, the text is the same. Of
    the second pattern half is forced."""
    harness = Harness(checkpoint("text"))
    compiler = GrammarCompiler(harness.checkpoint.tokenizer, VOCABULARY, harness.checkpoint.end_token_ids)
    params = SamplingParams(max_tokens=110, temperature=1.0, seed=4, n=2, structured=StructuredOutput("regex", pattern))
    prompt = harness.prepare(user("Say something."))

    def run(**knobs) -> tuple[dict[int, str], float]:
        core = harness.core(**knobs)
        outputs: list[RequestOutput] = []
        requests = harness.intake.requests(prompt, params, "r")
        core.add(harness.intake.sequences(requests, outputs.append, compiler.compile(params.structured)))
        free = harness.greedy(user("Hm."), 40, "free")
        harness.add(core, free)
        with torch.inference_mode():
            while core.has_work:
                assert core.step(), f"no progress: {core.last_plan}"
                core.check_integrity()
        assert {o.finish_reason for o in outputs if o.finish_reason} == {"stop"}
        texts = {index: "".join(o.text for o in outputs if o.index == index) for index in (0, 1)}
        return {**texts, 2: free.text()}, core.metrics.value("num_preemptions")

    roomy, none = run()
    per_page = harness.core().runner.shape.bytes_per_token(harness.checkpoint.dtype) * 16
    pages = -(-(len(prompt.token_ids) + params.max_tokens) // 16) + 1
    cramped, some = run(kv_cache_memory=per_page * pages, max_num_batched_tokens=16, max_num_seqs=4)
    assert none == 0 < some
    assert roomy == cramped
    assert all(re.fullmatch(pattern, roomy[index]) for index in (0, 1)) and roomy[0] != roomy[1]
    compiler.close()


def test_jump_forward_takes_fewer_steps_and_any_stop_ends_it(checkpoint):
    """The text is the one that the pattern allows; stop strings and token limits hold inside of what is forced."""
    harness = Harness(checkpoint("text"))
    compiler = GrammarCompiler(harness.checkpoint.tokenizer, VOCABULARY, harness.checkpoint.end_token_ids)
    prompt = harness.prepare(user("Say something."))
    wanted = StructuredOutput("regex", "The quick brown fox jumps over [ab] lazy dogs and does not look back\\.")

    def run(jump_forward: bool, **more) -> tuple[str, str, int, int]:
        core = harness.core(jump_forward=jump_forward)
        params = SamplingParams(**{"max_tokens": 200, "temperature": 0.0, "structured": wanted, **more})
        outputs: list[RequestOutput] = []
        requests = harness.intake.requests(prompt, params, "r")
        core.add(harness.intake.sequences(requests, outputs.append, compiler.compile(wanted)))
        with torch.inference_mode():
            while core.has_work:
                assert core.step()
                core.check_integrity()
        ids = [token for output in outputs for token in output.token_ids]
        assert len(ids) == outputs[-1].num_output_tokens == core.metrics.value("generation_tokens")
        text = "".join(output.text for output in outputs)
        return text, str(outputs[-1].finish_reason), len(ids), int(core.metrics.value("engine_steps"))

    jumping, sampled = run(True), run(False)
    assert re.fullmatch(wanted.source, jumping[0]) and re.fullmatch(wanted.source, sampled[0])
    assert jumping[1] == sampled[1] == "stop"
    assert sampled[3] >= sampled[2] and jumping[3] < jumping[2] / 3
    assert run(True, stop=["brown fox"])[:2] == ("The quick ", "stop")
    text, reason, count, _ = run(True, max_tokens=3)
    assert (reason, count) == ("length", 3) and "The quick brown fox".startswith(text)
    compiler.close()
