"""Structured output in the engine: what is refused, what a grammar lets through, and that nobody else notices."""

from __future__ import annotations

import asyncio
import json
import random
import sys

import jsonschema
import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from tests.checkpoints import SHARED
from vlm_engine import InvalidRequestError, SamplingParams, StructuredOutput, Thinking
from vlm_engine.sampler import SamplingState, sample
from vlm_engine.structured import CACHED_GRAMMARS, MAX_SOURCE_BYTES, GrammarCompiler, allowed_tokens

VOCABULARY = 49280
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def tokenizer(shared_data):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(SHARED / "vlm" / "smolvlm-256m")


@pytest.fixture(scope="module")
def compiler(tokenizer):
    compiler = GrammarCompiler(tokenizer, VOCABULARY, [tokenizer.eos_token_id])
    yield compiler
    compiler.close()


def schema(value, **options) -> StructuredOutput:
    return StructuredOutput("json_schema", json.dumps(value), **options)


def tokens_of(tokenizer, text: str) -> list[int]:
    """A token a character, so that nothing depends on how text is cut."""
    return [token for char in text for token in tokenizer.encode(char, add_special_tokens=False)]


def accepted(compiler, tokenizer, wanted, text: str, thinking: Thinking | None = None) -> int:
    """How many tokens of the text the grammar takes."""
    matcher, ids = compiler.compile(wanted, thinking), tokens_of(tokenizer, text)
    for count, token in enumerate(ids):
        try:
            matcher.accept(token)
        except RuntimeError:
            return count
    return len(ids)


def takes(compiler, tokenizer, wanted, text: str, thinking: Thinking | None = None) -> bool:
    """Whether the text is a whole answer."""
    matcher = compiler.compile(wanted, thinking)
    try:
        for token in tokens_of(tokenizer, text):
            matcher.accept(token)
    except RuntimeError:
        return False
    return matcher.ended or bool(allowed_tokens([matcher], VOCABULARY, CPU)[0, tokenizer.eos_token_id])


def draw(compiler, tokenizer, wanted, seed: int, limit: int = 400) -> str | None:
    """A random answer of the grammar, short strings preferred; None when the limit came first."""
    matcher, rng, ids = compiler.compile(wanted), torch.Generator().manual_seed(seed), []
    nearer = torch.zeros(VOCABULARY)
    nearer[tokens_of(tokenizer, '"}],0')] = 4.0
    for _ in range(limit):
        if matcher.ended:
            break
        allowed = allowed_tokens([matcher], VOCABULARY, CPU)[0]
        scores = nearer + torch.rand(VOCABULARY, generator=rng)
        token = int(scores.masked_fill(~allowed, float("-inf")).argmax())
        if token == tokenizer.eos_token_id:
            break
        matcher.accept(token)
        ids.append(token)
    else:
        return None
    return tokenizer.decode(ids)


NAME = {
    "type": "object",
    "properties": {"name": {"type": "string"}},
    "required": ["name"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        (schema({"type": "nonsense"}), "nonsense"),
        (schema({"type": "array", "uniqueItems": True}), "uniqueItems"),
        (schema({"not": {"type": "string"}}), "not"),
        (schema({"$ref": "http://127.0.0.1:1/x.json"}), "127.0.0.1"),
        (schema({"$ref": "#"}), "nothing matches"),
        (schema({"type": "string", "pattern": "("}), "regex"),
        (schema([1]), "object"),
        (StructuredOutput("json_schema", "{"), "not JSON"),
        (StructuredOutput("json_schema", '{"items":' * 5000 + "{}" + "}" * 5000), ""),
        (StructuredOutput("regex", "a("), "regex"),
        (StructuredOutput("regex", "(?=a)b"), "look-around"),
        (StructuredOutput("choice", "[]"), "0 choices"),
        (StructuredOutput("grammar", "start: nobody"), "nobody"),
        (StructuredOutput("grammar", "root ::= ((("), "GBNF"),
        (StructuredOutput("grammar", "root ::= " + "(" * 30_000), ""),
        (StructuredOutput("grammar", "start: start"), "nothing matches"),
        (StructuredOutput("grammar", "start: <|nobody|>"), "nobody"),
        (StructuredOutput("regex", "a" * (MAX_SOURCE_BYTES + 1)), str(MAX_SOURCE_BYTES)),
        (schema({"type": "object", "properties": {f"k{i}": {"type": "string"} for i in range(3000)}}), "items"),
        (StructuredOutput("grammar", 'start: s\ns: s s | s s s | "a" | "b" | /[a-z]/'), "items"),
        (StructuredOutput("regex", "|".join(f"(.*{chr(97 + i)}.{{{i + 5}}})" for i in range(20))), ""),
    ],
)
def test_e13_what_cannot_be_used_is_refused_with_the_reason(compiler, wanted, reason):
    with pytest.raises(InvalidRequestError) as refused:
        compiler.compile(wanted)
    assert reason in str(refused.value) and refused.value.param == "structured_outputs"
    assert len(str(refused.value)) < 700  # nobody's tokenizer or grammar is printed out


def test_lenient_schemas_leave_out_what_cannot_be_enforced(compiler, tokenizer):
    assert takes(compiler, tokenizer, schema({"type": "array", "uniqueItems": True}, lenient=True), "[1,1]")


@pytest.mark.parametrize(
    ("wanted", "good", "bad"),
    [
        (schema(NAME), '{"name": "Ann"}', '{"name": 3}'),
        (schema(NAME), '{\n  "name": "Ann"\n}', '{"name": "Ann", "age": 3}'),
        (StructuredOutput("regex", r"[a-z]{3}-\d+"), "abc-12", "ab-12"),
        (StructuredOutput("choice", '["red", "green \\"é\\"", "re"]'), 'green "é"', "gree"),
        (StructuredOutput("choice", '["red", "re"]'), "re", "r"),
        (StructuredOutput("grammar", 'start: "a" B\nB: /[0-9]+/'), "a12", "ab"),
        (StructuredOutput("grammar", 'root ::= "a" [0-9]+ ("," root)?'), "a1,a2", "a1,"),
        (StructuredOutput("regex", ""), "", "a"),
    ],
)
def test_each_kind_lets_through_what_matches_and_nothing_else(compiler, tokenizer, wanted, good, bad):
    assert takes(compiler, tokenizer, wanted, good)
    assert not takes(compiler, tokenizer, wanted, bad)


def test_e14_white_space_is_bounded_wherever_it_may_stand(compiler, tokenizer):
    """Also where a schema asks for more by itself."""
    free = {
        **NAME,
        "x-guidance": {"whitespace_pattern": "[ \n]*", "whitespace_flexible": True, "item_separator": ", *"},
    }
    for wanted in (schema({"type": "object"}), schema(NAME), schema(free)):
        for space in (" " * 100, "\n" * 100, "\t" * 100, " \n" * 100):
            assert accepted(compiler, tokenizer, wanted, "{" + space) <= 1 + 17
    assert accepted(compiler, tokenizer, schema(NAME), " ") == 0
    assert accepted(compiler, tokenizer, schema(NAME), '{"name":"Ann"} ') == len('{"name":"Ann"}')


def test_reasoning_may_come_before_the_answer_and_its_first_end_marker_ends_it(compiler, tokenizer):
    wanted = schema(NAME)
    free, opened = Thinking(), Thinking(open=True)
    assert takes(compiler, tokenizer, wanted, '<think>"a" {1} <b>\n</think>\n\n{"name":"Ann"}', free)
    assert takes(compiler, tokenizer, wanted, '{"name":"Ann"}', free)
    assert not takes(compiler, tokenizer, wanted, '<think>a</think> b </think>{"name":"Ann"}', free)
    assert takes(compiler, tokenizer, wanted, 'hm </think>{"name":"Ann"}', opened)
    assert not takes(compiler, tokenizer, wanted, '{"name":"Ann"}', opened)


def test_markers_may_be_special_tokens(compiler, tokenizer):
    matcher = compiler.compile(schema(NAME), Thinking("<|im_start|>", "<|im_end|>"))
    ids = tokenizer.encode('<|im_start|>so <|im_end|>{"name":"Ann"}', add_special_tokens=False)
    assert len(ids) < 15
    for token in ids:
        matcher.accept(token)
    assert matcher.ended


def test_added_tokens_that_a_grammar_spells_out_are_its_text_or_its_markers(shared_data):
    """Qwen's <tool_call> is a token that is not special: a schema that holds the word means its letters."""
    from transformers import AutoTokenizer

    qwen = AutoTokenizer.from_pretrained(SHARED / "vlm" / "qwen3-vl-2b")
    compiler = GrammarCompiler(qwen, 151936, [qwen.eos_token_id])
    for wanted, text in (
        (schema({"const": "<tool_call>"}), '"<tool_call>"'),
        (StructuredOutput("choice", '["<think>"]'), "<think>"),
    ):
        matcher, out = compiler.compile(wanted), ""
        while not matcher.ended:
            allowed = allowed_tokens([matcher], 151936, CPU)[0].nonzero()[:, 0].tolist()
            token = max(allowed, key=lambda t: len(qwen.decode([t])))
            matcher.accept(token)
            out += qwen.decode([token])
        assert out == text
    marked = StructuredOutput("grammar", 'start: (until_0 "a")? without_0', markers=("<tool_call>",))
    matcher = compiler.compile(marked)
    for token in qwen.encode("so <tool_call>a", add_special_tokens=False):
        assert allowed_tokens([matcher], 151936, CPU)[0, token]
        matcher.accept(token)
    assert not allowed_tokens([matcher], 151936, CPU)[0, qwen.convert_tokens_to_ids("<tool_call>")]
    compiler.close()


def test_markers_may_be_plain_text(compiler, tokenizer):
    marked = StructuredOutput("grammar", 'start: (until_0 "a")? without_0', markers=("<go>",))
    assert takes(compiler, tokenizer, marked, "so <go>a and on")
    assert takes(compiler, tokenizer, marked, "so <g o>")
    assert not takes(compiler, tokenizer, marked, "so <go>b")
    assert not takes(compiler, tokenizer, marked, "so <go>a and <go>a")


def test_json_on_one_line_leaves_nothing_to_choose_between_its_values(compiler, tokenizer):
    value = {"type": "object", "properties": {"kind": {"type": "string"}, "count": {"type": "integer"}}}
    value |= {"required": ["kind", "count"], "additionalProperties": False}
    matcher = compiler.compile(schema(value, one_line=True))
    first = matcher.forced()
    assert tokenizer.decode(first) == '{"kind":'
    for token in (*first, *tokens_of(tokenizer, ' "a"')):
        matcher.accept(token)
    assert tokenizer.decode(matcher.forced()) == ', "count":'
    assert compiler.compile(schema(value)).forced() == ()


# Sampling -------------------------------------------------------------------------------------------------------------


def state(matcher=None, end_ids=(), **params) -> SamplingState:
    params.setdefault("temperature", 0.0)
    return SamplingState(SamplingParams(**params), random.Random(0), frozenset(), frozenset(end_ids), grammar=matcher)


def test_only_the_rows_that_ask_for_it_are_masked(compiler, tokenizer):
    logits = torch.randn(3, VOCABULARY, generator=torch.manual_seed(0))
    before = logits.clone()
    got = sample(logits, [state(), state(compiler.compile(StructuredOutput("choice", '["7"]'))), state(logprobs=1)])
    assert [got[0].token, got[2].token] == before[[0, 2]].argmax(-1).tolist()
    assert tokenizer.decode([got[1].token]) == "7"
    assert torch.equal(logits[[0, 2]], before[[0, 2]])


def test_logprobs_are_the_models_own(compiler):
    logits = torch.randn(1, VOCABULARY, generator=torch.manual_seed(0))
    own = torch.log_softmax(logits[0], -1)
    [got] = sample(logits.clone(), [state(compiler.compile(StructuredOutput("regex", "[ab]+")), logprobs=2)])
    assert got.logprob == pytest.approx(float(own[got.token]))
    assert [token for token, _ in got.top] == own.topk(2).indices.tolist()


@pytest.mark.parametrize("params", [{"min_tokens": 3, "max_tokens": 9}, {"ignore_eos": True}])
def test_an_end_is_held_back_only_while_something_else_may_follow(compiler, tokenizer, params):
    end = tokenizer.eos_token_id
    logits = torch.zeros(1, VOCABULARY)
    logits[0, end] = 100.0
    for pattern, ends in (("a*", False), ("", True)):
        matcher = compiler.compile(StructuredOutput("regex", pattern))
        [got] = sample(logits.clone(), [state(matcher, [end], **params)])
        assert (got.token == end) is ends
    [got] = sample(logits.clone(), [state(compiler.compile(StructuredOutput("regex", "a*")), [end])])
    assert got.token == end


def test_a_grammar_that_runs_into_its_bounds_fails_its_own_row_only(compiler, tokenizer, monkeypatch):
    """And is compiled anew for the next request: the bound is on what all its outputs learned together."""
    monkeypatch.setattr("vlm_engine.structured.TRIED_WAYS", 0)
    heavy = StructuredOutput("regex", "(.*a.{12,20}b|.*b.{10,30}c|.*c.{9,31}d)*")

    async def run() -> None:
        matcher = await compiler.matcher(heavy)
        rng = random.Random(0)
        with pytest.raises(RuntimeError, match="structured output"):
            for _ in range(500):
                allowed = allowed_tokens([matcher], VOCABULARY, CPU)[0]
                matcher.accept(rng.choice(allowed.nonzero()[:, 0].tolist()))
        again = await compiler.matcher(heavy)
        assert allowed_tokens([again], VOCABULARY, CPU).any()

    asyncio.run(run())


def test_the_cache_is_bounded_and_its_entries_are_independent(compiler, tokenizer):
    async def run() -> None:
        a = await compiler.matcher(StructuredOutput("regex", "ab"))
        a.accept(tokens_of(tokenizer, "a")[0])
        b = await compiler.matcher(StructuredOutput("regex", "ab"))
        assert not a.ended and not b.ended
        a.accept(tokens_of(tokenizer, "b")[0])
        assert a.ended and not b.ended
        for number in range(2 * CACHED_GRAMMARS):
            await compiler.matcher(StructuredOutput("regex", f"a{number}"))
        assert len(compiler._cache) == CACHED_GRAMMARS

    asyncio.run(run())


@settings(max_examples=40, deadline=None)
@example(["a\x7fb", "\x00\x1f\x80\u2028", '"\\'])
@given(st.lists(st.text(st.characters(codec="utf-8"), min_size=1, max_size=8), min_size=1, max_size=4))
def test_any_texts_may_be_the_choices(compiler, tokenizer, texts):
    """As far as the vocabulary can write them: SmolVLM's lacks some rare bytes; such choices are left out here."""
    texts = [text for text in texts if tokenizer.decode(tokens_of(tokenizer, text)) == text]
    assume(texts)
    wanted = StructuredOutput("choice", json.dumps(texts))
    for text in texts:
        assert takes(compiler, tokenizer, wanted, text)


# Random schemas -------------------------------------------------------------------------------------------------------

_leaves = st.one_of(
    st.just({"type": "boolean"}),
    st.just({"type": "null"}),
    st.builds(
        lambda a, b: {"type": "integer", "minimum": a, "maximum": a + b}, st.integers(-99, 99), st.integers(0, 99)
    ),
    st.builds(
        lambda a, b: {"type": "string", "minLength": a, "maxLength": a + b}, st.integers(0, 3), st.integers(0, 5)
    ),
    st.builds(
        lambda v: {"enum": v}, st.lists(st.sampled_from(["a", 'q"', 1, None, True, "é"]), min_size=1, max_size=4)
    ),
    st.sampled_from([{"type": "string", "pattern": "^[a-c]{2,4}$"}, {"type": "string", "format": "date"}]),
    st.builds(lambda v: {"const": v}, st.sampled_from(["x", 7, {"a": [1]}])),
)


def _nested(inner):
    properties = st.dictionaries(st.sampled_from(["a", "b b", "c\n", "é", "d"]), inner, max_size=4)
    return st.one_of(
        properties.flatmap(
            lambda p: st.sets(st.sampled_from(sorted(p)) if p else st.nothing()).map(
                lambda r: {"type": "object", "properties": p, "required": sorted(r), "additionalProperties": False}
            )
        ),
        st.builds(lambda i, n: {"type": "array", "items": i, "maxItems": n}, inner, st.integers(0, 3)),
        st.builds(lambda x: {"anyOf": x}, st.lists(inner, min_size=1, max_size=3)),
    )


@settings(max_examples=30, deadline=None)
@given(value=st.recursive(_leaves, _nested, max_leaves=6), seed=st.integers(0, 10))
def test_random_answers_of_random_schemas_validate(compiler, tokenizer, value, seed):
    text = draw(compiler, tokenizer, schema(value), seed)
    assert text is not None
    jsonschema.validate(json.loads(text), value)


# Without the library --------------------------------------------------------------------------------------------------


def test_without_the_library_structured_output_is_refused_in_words(tokenizer, monkeypatch):
    """That the engine imports without it: tests/test_arrows.py."""
    monkeypatch.setitem(sys.modules, "llguidance", None)
    compiler = GrammarCompiler(tokenizer, VOCABULARY, [2])
    with pytest.raises(InvalidRequestError, match="llguidance, which is not installed"):
        asyncio.run(compiler.matcher(StructuredOutput("regex", "a")))
    compiler.close()
