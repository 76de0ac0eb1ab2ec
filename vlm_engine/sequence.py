"""One output sequence in the making: the request's tokens, how it samples, its text, and when it ends."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from vlm_engine.detokenizer import Detokenizer
from vlm_engine.outputs import FinishReason, PositionLogprobs, RequestOutput, TokenLogprob
from vlm_engine.request import Request
from vlm_engine.sampler import Sample, SamplingState
from vlm_engine.structured import GrammarMatcher

LONGEST_JUMP = 32
"""Most tokens that are forced at once: each takes its place in a step, beside others' decodes."""


@dataclass(slots=True, eq=False)
class OutputSequence:
    """A request with everything that turns its logits into text.

    Attributes:
        deliver: called with every piece of output, in the engine thread.
        followers: sequences of the same prompt, started once this one has its first token.
        prompt_logprobs: of the prompt's tokens from the second on, as far as they are known and not delivered yet.
        jumps: whether tokens that the grammar forces are taken without being sampled.
    """

    request: Request
    sampling: SamplingState
    detokenizer: Detokenizer
    end_ids: frozenset[int]
    tokenizer: Any
    deliver: Callable[[RequestOutput], None]
    followers: list[OutputSequence]
    prompt_logprobs: list[PositionLogprobs] = field(default_factory=list)
    jumps: bool = True

    @staticmethod
    def create(
        request: Request,
        tokenizer: Any,
        end_ids: frozenset[int],
        seed: int,
        deliver: Callable[[RequestOutput], None],
        grammar: GrammarMatcher | None = None,
    ) -> OutputSequence:
        """Sets up sampling and text for a request; ``grammar`` is its own."""
        params = request.params
        sampling = SamplingState(
            params,
            random.Random(seed),
            frozenset(request.token_ids) if params.repetition_penalty != 1.0 else frozenset(),
            end_ids | set(params.stop_token_ids),
            grammar=grammar,
        )
        detokenizer = Detokenizer(
            tokenizer, params.stop, params.include_stop_str_in_output, params.skip_special_tokens, params.thinking
        )
        return OutputSequence(request, sampling, detokenizer, end_ids, tokenizer, deliver, [])

    def take_scores(self, samples: Iterable[Sample]) -> None:
        """The next of the prompt's tokens with their log-probabilities."""
        for sample in samples:
            self.prompt_logprobs += self._logprobs(sample)
            self.request.scored += 1

    def take(self, sample: Sample) -> RequestOutput:
        """Appends a sampled token and what the grammar forces after it, and ends the request when it is time. Gives the
        piece of output to deliver.

        Forced tokens need no logits: the next step computes them together, as a prompt's (jump-forward decoding,
        https://lmsys.org/blog/2024-02-05-compressed-fsm/).
        """
        request, first = self.request, self.request.total
        request.forced = 0
        text, reason, stop_reason = self._append(sample.token)
        if reason is None and self.jumps:
            for token in self.sampling.forced()[:LONGEST_JUMP]:
                if token in self.end_ids or token in request.params.stop_token_ids:
                    break  # Sampled, it ends the output in the usual way.
                more, reason, stop_reason = self._append(token)
                text += more
                request.forced += 1
                if reason is not None:
                    break
        return self.output(text, tuple(request.token_ids[first:]), self._logprobs(sample), reason, stop_reason)

    def _append(self, token: int) -> tuple[str, FinishReason | None, str | int | None]:
        """Gives the new text, and why the output ends with it, if it does."""
        request, params = self.request, self.request.params
        request.token_ids.append(token)
        self.sampling.accept(token)
        text = ""
        stop_reason: str | int | None = None
        reason: FinishReason | None = None
        ended = self.sampling.ended
        if token in self.end_ids and (not params.ignore_eos or ended):
            reason = FinishReason.STOP
        elif token in params.stop_token_ids:
            reason, stop_reason = FinishReason.STOP, token
        else:
            piece = self.detokenizer.add(token)
            text, stop_reason = piece.text, piece.stop
            if piece.stop is not None or ended:
                reason = FinishReason.STOP
            elif request.total >= request.max_total:
                reason = FinishReason.LENGTH
        if reason is not None and not isinstance(stop_reason, str):
            text += self.detokenizer.finish().text
        request.finish_reason = reason
        return text, reason, stop_reason

    def output(
        self,
        text: str,
        token_ids: tuple[int, ...],
        logprobs: tuple[PositionLogprobs, ...] = (),
        reason: FinishReason | None = None,
        stop_reason: str | int | None = None,
        error: str | None = None,
    ) -> RequestOutput:
        """A piece of output with the counts as they stand, and the prompt's log-probabilities with the first."""
        request, of_prompt = self.request, tuple(self.prompt_logprobs)
        self.prompt_logprobs.clear()
        return RequestOutput(
            request.request_id,
            request.index,
            text,
            token_ids,
            logprobs,
            reason,
            stop_reason,
            request.num_prompt,
            request.cached,
            request.num_output,
            error,
            self.detokenizer.num_reasoning,
            of_prompt,
        )

    def _logprobs(self, sample: Sample) -> tuple[PositionLogprobs, ...]:
        if sample.logprob is None:
            return ()
        chosen = self._token_logprob(sample.token, sample.logprob, sample.rank)
        return (PositionLogprobs(chosen, tuple(self._token_logprob(t, value) for t, value in sample.top)),)

    def _token_logprob(self, token: int, value: float, rank: int | None = None) -> TokenLogprob:
        return TokenLogprob(token, self.tokenizer.decode([token]), value, rank)
