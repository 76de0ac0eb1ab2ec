"""Structured output: what a request may ask for, grammars compiled off the engine thread, and their token masks.

The work is done by llguidance (https://github.com/guidance-ai/llguidance, MIT): its automata are lazy, so that
compiling takes milliseconds, every step of it has a bound, and a JSON schema with a keyword that it can't enforce is an
error. (Of xgrammar 0.2.9 two of these were found wanting: ``not``, ``if`` and ``uniqueItems`` pass unenforced, and a
schema of 3000 optional properties compiles for minutes.) It is imported when a model is loaded; without it the engine
refuses structured output.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from vlm_engine.errors import InvalidRequestError
from vlm_engine.thinking import Thinking

MAX_SOURCE_BYTES = 128 * 1024
"""Longest schema, regular expression or grammar."""
MAX_CHOICES = 4096
CACHED_GRAMMARS = 32
TRIED_WAYS, TRIED_TOKENS = 3, 12
"""Answers begun, and tokens of each, before a grammar is accepted: most that run into bounds do so at once."""
COMPILE_TIMEOUT_S = 10.0
"""How long a request waits for its grammar, others' before it included."""

ONE_LINE: Mapping[str, Any] = {"item_separator": ", ", "key_separator": ": ", "whitespace_flexible": False}
JSON_OPTIONS: Mapping[str, Any] = {
    "item_separator": ",",
    "key_separator": ":",
    "whitespace_flexible": True,
    # Room for pretty printing, and an end to it: models that may write white space forever do (vLLM#13260).
    "whitespace_pattern": r"\n?[ \t]{0,16}",
}
_LIMITS: Mapping[str, int] = {
    # A step's bounds are some milliseconds of the engine thread; a lexer state takes 1 to 2 kB.
    "initial_lexer_fuel": 1_000_000,
    "step_lexer_fuel": 100_000,
    "step_max_items": 20_000,
    "max_lexer_states": 50_000,
    "max_grammar_size": 100_000,
}

Kind = Literal["json_schema", "regex", "choice", "grammar"]


@dataclass(frozen=True, slots=True)
class StructuredOutput:
    """What the answer must look like.

    Attributes:
        kind: which of them ``source`` is.
        source: a JSON schema as JSON text (an object); a regular expression (Rust's syntax, the whole answer matches);
            a JSON list of strings; or a grammar, Lark (as llguidance reads it) or GBNF (``root ::= ...``).
        lenient: keywords of a schema that can't be enforced are left out instead of refused.
        markers: texts that a Lark grammar names, as they may be single tokens: ``mark_0`` is the first of them,
            ``until_0`` any text and then it, ``without_0`` text without it.
        one_line: JSON of a schema is written on one line, with a space after each comma and colon and none elsewhere.
            Then all between two values can be foreseen (:meth:`GrammarMatcher.forced`).
    """

    kind: Kind
    source: str
    lenient: bool = False
    markers: tuple[str, ...] = ()
    one_line: bool = False


class GrammarMatcher:
    """Where one output stands in its grammar. Owned by the engine thread once its request is submitted.

    Copies share what the grammar's lexer has learned, and with it the bound on that.
    """

    def __init__(self, matcher: Any, end_ids: frozenset[int], spoiled: threading.Event) -> None:
        self._matcher = matcher
        self._spoiled = spoiled
        self.end_ids = end_ids

    def copy(self) -> GrammarMatcher:
        """An independent one at the same place."""
        return GrammarMatcher(self._matcher.deep_copy(), self.end_ids, self._spoiled)

    @property
    def spoiled(self) -> bool:
        """Whether a copy ran into a bound, so that others soon would."""
        return self._spoiled.is_set()

    def fill(self, row: torch.Tensor) -> None:
        """Writes one bit a token, 1 = allowed, into ``row`` (int32, contiguous, on the CPU, 32 tokens a word).

        Raises:
            RuntimeError: the grammar ran into its bounds here.
        """
        self._matcher.unsafe_compute_mask_ptr(row.data_ptr(), row.numel() * row.element_size())
        self._check()

    def accept(self, token: int) -> None:
        """Moves on by a sampled token. Raises RuntimeError for one that the mask forbade."""
        self._matcher.consume_token(token)
        self._check()

    def forced(self) -> tuple[int, ...]:
        """The tokens of the one text that can follow here, as the tokenizer writes it; mostly none."""
        tokens = tuple(self._matcher.compute_ff_tokens())
        self._check()
        return tokens

    @property
    def ended(self) -> bool:
        """Whether nothing can follow."""
        return bool(self._matcher.is_stopped())

    def _check(self) -> None:
        if self._matcher.is_error():
            self._spoiled.set()
            # The first line only: what follows describes the parser's state.
            raise RuntimeError(f"structured output: {self._matcher.get_error().splitlines()[0][:300]}")


def allowed_tokens(matchers: Sequence[GrammarMatcher], vocabulary: int, device: torch.device) -> torch.Tensor:
    """bool ``[matchers, vocabulary]`` on ``device``."""
    packed = torch.zeros(len(matchers), (vocabulary + 31) // 32, dtype=torch.int32)
    for row, matcher in zip(packed, matchers, strict=True):
        matcher.fill(row)
    bits = torch.arange(32, dtype=torch.int32, device=device)
    return ((packed.to(device)[:, :, None] >> bits) & 1).flatten(1)[:, :vocabulary].bool()


class GrammarCompiler:
    """Compiled grammars of one model, the last used ones kept. Safe to use from any thread or loop.

    Building it takes about a second for a vocabulary of 150,000 and holds the interpreter: do it while a model loads.

    Args:
        tokenizer: the checkpoint's; a fast one.
        vocabulary: width of the model's logits.
        end_ids: tokens that may end an answer.
    """

    def __init__(self, tokenizer: Any, vocabulary: int, end_ids: Iterable[int]) -> None:
        self._end_ids = frozenset(end_ids)
        self._unavailable = ""
        self._tokenizer: Any = None
        try:
            import llguidance
            import llguidance.hf

            self._tokenizer = llguidance.hf.from_tokenizer(
                tokenizer, n_vocab=vocabulary, eos_token=sorted(self._end_ids)
            )
        except ImportError:
            self._unavailable = "structured output needs the package llguidance, which is not installed on the server"
        except ValueError as error:
            self._unavailable = f"structured output doesn't know this model's tokenizer: {error}"
        else:
            self._library = llguidance
            self._limits = llguidance.LLParserLimits(**_LIMITS, verbose_errors=False)
            added = tokenizer.added_tokens_decoder.items()
            self._words = tuple(str(t) for i, t in added if not t.special and self._tokenizer.is_special_token(i))
        # One thread: compiling leaves the other cores to the engine, and hostile grammars wait for each other.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="grammar")
        self._lock = threading.Lock()
        self._cache: OrderedDict[tuple[StructuredOutput, Thinking | None], GrammarMatcher] = OrderedDict()

    def close(self) -> None:
        """Ends the thread."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def matcher(self, wanted: StructuredOutput, thinking: Thinking | None = None) -> GrammarMatcher:
        """At the beginning of ``wanted``, after the reasoning if there may be any.

        Raises:
            InvalidRequestError: it isn't valid, can't be enforced, nothing matches it, or it is too large.
        """
        if self._unavailable:
            raise InvalidRequestError(self._unavailable, param="structured_outputs", code="unsupported_parameter")
        key = (wanted, thinking)
        with self._lock:
            known = self._cache.get(key)
            if known is not None and not known.spoiled:
                self._cache.move_to_end(key)
                return known.copy()
        try:
            async with asyncio.timeout(COMPILE_TIMEOUT_S):
                made = await asyncio.get_running_loop().run_in_executor(self._thread, self.compile, wanted, thinking)
        except TimeoutError:
            raise _refusal(f"its grammar was not compiled within {COMPILE_TIMEOUT_S:.0f} s") from None
        with self._lock:
            self._cache[key] = made
            while len(self._cache) > CACHED_GRAMMARS:
                self._cache.popitem(last=False)
        return made.copy()

    def compile(self, wanted: StructuredOutput, thinking: Thinking | None = None) -> GrammarMatcher:
        """As :meth:`matcher`, in this thread, and not cached."""
        if len(wanted.source.encode()) > MAX_SOURCE_BYTES:
            raise _refusal(f"it takes {len(wanted.source.encode())} bytes, allowed are {MAX_SOURCE_BYTES}")
        grammars = self._grammars(wanted)
        around = [] if thinking is None else self._after(thinking)
        if any(name in wanted.source for name in self._words):
            # Where only one text can follow, llguidance foresees its tokens, and would take these for special ones.
            around = ['%llguidance {"no_forcing": true}', *(around or ["start: @answer"])]
        if around:
            grammars[0]["name"] = "answer"
            grammars.insert(0, {"name": "main", "lark_grammar": "\n".join(around)})
        text = json.dumps({"grammars": grammars})
        matcher = self._library.LLMatcher(self._tokenizer, text, log_level=0, limits=self._limits)
        reason = matcher.get_error() if matcher.is_error() else self._try(matcher)
        if reason:
            reason = reason.split("following special tokens")[0].replace("<non-verbose/>", "").strip()
            if reason.startswith("NoExtensionBias"):
                reason = "nothing matches it"
            raise _refusal(reason[:500].strip() or "it can't be compiled")
        return GrammarMatcher(matcher, self._end_ids, threading.Event())

    def _try(self, matcher: Any) -> str:
        """What is wrong as soon as it is used - that nothing matches, or that a bound is reached - or an empty text."""
        for choice in range(TRIED_WAYS):
            copy = matcher.deep_copy()
            for step in range(TRIED_TOKENS):
                if copy.is_stopped():
                    break
                mask = copy.compute_bitmask()
                if copy.is_error():
                    return str(copy.get_error())
                allowed = np.flatnonzero(np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little"))
                if not len(allowed):
                    break
                token = int(allowed[(choice * len(allowed) // TRIED_WAYS + step) % len(allowed)])
                if not copy.consume_token(token):
                    return str(copy.get_error())
        return ""

    def _grammars(self, wanted: StructuredOutput) -> list[dict[str, Any]]:
        source = wanted.source
        if wanted.kind == "json_schema":
            return [{"json_schema": bounded_schema(_loads(source), lenient=wanted.lenient, one_line=wanted.one_line)}]
        if wanted.kind == "choice":
            choices = _loads(source)
            if not choices or len(choices) > MAX_CHOICES:
                raise _refusal(f"there are {len(choices)} choices, allowed are 1 to {MAX_CHOICES}")
            return [{"lark_grammar": "start: " + " | ".join(lark_string(text) for text in choices)}]
        try:
            grammar = self._library.grammar_from("regex" if wanted.kind == "regex" else "grammar", source)
        except (ValueError, RecursionError) as error:
            raise _refusal(str(error)[:500]) from None
        if wanted.kind == "regex":
            return [{"lark_grammar": json.loads(grammar)["grammars"][0]["lark_grammar"]}]
        rules = self._marker_rules(wanted.markers) if wanted.markers else []
        return [{"lark_grammar": "\n".join([grammar, *rules])}]

    def _after(self, thinking: Thinking) -> list[str]:
        """Lark: reasoning up to its end marker, then the answer."""
        start = "start: until_1 GAP @answer" if thinking.open else "start: (mark_0 until_1 GAP)? @answer"
        return [start, "GAP: /\\n{0,2}/", *self._marker_rules((thinking.start, thinking.end))]

    def _marker_rules(self, markers: Sequence[str]) -> list[str]:
        """Lark, for each marker: ``mark_N``, any text ``until_N`` with it, and text ``without_N``.

        A marker may be a token of its own, as ``<tool_call>`` is Qwen's: such never count as text. Else it is text, and
        the first one ends ``until_N``.
        """
        rules = [r"ANY: /(.|\n)*/"]
        for number, marker in enumerate(markers):
            ids = self._tokenizer.tokenize_str(marker, parse_special=True)
            if len(ids) == 1 and self._tokenizer.is_special_token(ids[0]):
                rules += [f"mark_{number}: <[{ids[0]}]>", f"until_{number}: ANY <[{ids[0]}]>", f"without_{number}: ANY"]
                continue
            text = lark_string(marker)
            rules += [
                f"mark_{number}: {text}",
                f"until_{number}[lazy]: ANY {text}",
                f"without_{number}: WITHOUT_{number}",
                f"WITHOUT_{number}: ANY & ~WITH_{number}",
                f"WITH_{number}: ANY {text} ANY",
            ]
        return rules


def bounded_schema(schema: Any, *, lenient: bool = False, one_line: bool = False) -> dict[str, Any]:
    """A JSON schema with our way of writing: bounded white space, nothing unknown passed over unless ``lenient``.

    Raises:
        InvalidRequestError: it is no object.
    """
    if not isinstance(schema, dict):
        raise _refusal(f"a JSON schema is an object, not {json.dumps(schema)[:40]}")
    written = ONE_LINE if one_line else JSON_OPTIONS
    return {**schema, "x-guidance": {**written, "lenient": lenient, "coerce_one_of": lenient}}


def lark_string(text: str) -> str:
    """``text`` as a literal of a Lark grammar."""
    # llguidance's lexer takes every character that JSON leaves as it is but this one, which has to be escaped.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _loads(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _refusal(f"it is not JSON: {error}") from None


def _refusal(reason: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"the structured output asked for can't be used: {reason}", param="structured_outputs", code="invalid_grammar"
    )
