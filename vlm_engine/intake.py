"""From what a caller asks to requests that the scheduler can run: prompts put together, limits checked, seeds given."""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from vlm_engine.chat import ChatRenderer
from vlm_engine.config import EngineConfig
from vlm_engine.errors import InvalidRequestError
from vlm_engine.loader import Checkpoint
from vlm_engine.outputs import RequestOutput
from vlm_engine.preprocess import ProcessedImage
from vlm_engine.prompt import ImageInput, PreparedPrompt, PriorityClass
from vlm_engine.request import ImageSpan, Request
from vlm_engine.sampling_params import SamplingParams
from vlm_engine.sequence import OutputSequence
from vlm_engine.structured import GrammarMatcher

NORMALISATION_SLACK = 4


class Intake:
    """Safe to use from any thread.

    Args:
        config: limits and the base of seeds.
        checkpoint: the loaded model.
        capacity: tokens that the KV cache holds.
    """

    def __init__(self, config: EngineConfig, checkpoint: Checkpoint, capacity: int) -> None:
        self._config = config
        self._checkpoint = checkpoint
        self._arrivals = itertools.count()
        own: int = checkpoint.family.text_config.max_position_embeddings
        self.max_model_len = min(config.max_model_len or own, own, capacity)
        self.vocab_size: int = checkpoint.family.text_config.vocab_size
        processor = checkpoint.processor
        image_token = processor.image_token if processor is not None else None
        self._image_token_id: int | None = processor.image_token_id if processor is not None else None
        # No token is longer, in characters; the slack is for normalisation, which may make text shorter.
        longest = NORMALISATION_SLACK * max(map(len, checkpoint.tokenizer.get_vocab()))
        self.chat = ChatRenderer(
            checkpoint.tokenizer, checkpoint.chat_template, image_token, self.max_model_len * longest
        )

    @property
    def default_params(self) -> SamplingParams:
        """Sampling defaults of the checkpoint's ``generation_config.json``."""
        g = self._checkpoint.generation
        return SamplingParams(
            temperature=(1.0 if g.temperature is None else float(g.temperature)) if g.do_sample else 1.0,
            top_p=1.0 if g.top_p is None else float(g.top_p),
            top_k=int(g.top_k) if g.do_sample and g.top_k else 0,
            repetition_penalty=1.0 if g.repetition_penalty is None else float(g.repetition_penalty),
        )

    def check_token_ids(self, token_ids: Sequence[int]) -> None:
        """Raises InvalidRequestError for ids that the model doesn't have, or that stand for a picture."""
        self.check_vocabulary("messages", token_ids)
        if self._image_token_id in token_ids:
            raise InvalidRequestError(
                f"token id {self._image_token_id} stands for a picture; send pictures in a chat", param="messages"
            )

    def check_vocabulary(self, name: str, token_ids: Iterable[int]) -> None:
        """Raises InvalidRequestError, naming the parameter, for ids that the model doesn't have."""
        for token in token_ids:
            if not 0 <= token < self.vocab_size:
                raise InvalidRequestError(
                    f"{name} holds token id {token}, the model's are 0 to {self.vocab_size - 1}", param=name
                )

    def assemble(
        self,
        pieces: Sequence[Sequence[int]],
        images: Sequence[ProcessedImage],
        truncate_prompt_tokens: int | None = None,
    ) -> PreparedPrompt:
        """Puts the text between the pictures and the pictures' token blocks together, and computes positions.

        Args:
            pieces: token ids of the text before, between and after the pictures.
            images: in their order.
            truncate_prompt_tokens: keep only so many of the last tokens.

        Raises:
            InvalidRequestError: nothing is in it, or a picture would be cut off.
        """
        ids: list[int] = list(pieces[0])
        inputs: list[ImageInput] = []
        for image, piece in zip(images, pieces[1:], strict=True):
            start = len(ids)
            indices = tuple(start + index for index in image.feature_indices)
            inputs.append(ImageInput(image.content_hash, start, indices, image.inputs))
            ids += image.token_ids
            ids += piece
        if not ids:
            raise InvalidRequestError("the prompt is empty", param="messages")
        cut = max(0, len(ids) - truncate_prompt_tokens) if truncate_prompt_tokens is not None else 0
        if cut:
            ids, inputs = ids[cut:], [_moved(image, cut) for image in inputs]
        positions, delta = self._checkpoint.family.positions(ids, inputs)
        return PreparedPrompt(tuple(ids), tuple(inputs), positions, delta)

    def requests(
        self,
        prompt: PreparedPrompt,
        params: SamplingParams,
        request_id: str,
        priority_class: PriorityClass = PriorityClass.INTERACTIVE,
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> list[Request]:
        """One request for each of the ``n`` outputs, with one salt between them, so that they share the prompt's pages.

        Raises:
            InvalidRequestError: longer than the context, with the numbers.
        """
        max_total = self._max_total(prompt, params)
        # Sampling would fail on ids beyond the vocabulary.
        self.check_vocabulary("logit_bias", params.logit_bias)
        self.check_vocabulary("stop_token_ids", params.stop_token_ids)
        caching = self._config.enable_prefix_caching
        salt = (cache_salt or "").encode() if caching else uuid.uuid4().bytes
        spans = self._spans(prompt)
        return [
            Request(
                key=f"{request_id}/{index}",
                request_id=request_id,
                index=index,
                token_ids=list(prompt.token_ids),
                num_prompt=len(prompt.token_ids),
                # The prompt is one for all.
                params=replace(params, n=1, prompt_logprobs=params.prompt_logprobs if index == 0 else None),
                priority_class=priority_class,
                arrival=next(self._arrivals),
                max_total=max_total,
                block_size=self._config.block_size,
                priority=priority,
                salt=salt,
                prompt=prompt,
                spans=spans,
                arrival_time=time.monotonic(),
            )
            for index in range(params.n)
        ]

    def sequences(
        self,
        requests: Sequence[Request],
        deliver: Callable[[RequestOutput], None],
        grammar: GrammarMatcher | None = None,
    ) -> list[OutputSequence]:
        """The requests with their sampling and text; each output has its own random stream and place in the grammar."""
        tokenizer, ends = self._checkpoint.tokenizer, self._checkpoint.end_token_ids
        return [
            OutputSequence.create(r, tokenizer, ends, self._seed(r), deliver, grammar.copy() if grammar else None)
            for r in requests
        ]

    def _seed(self, request: Request) -> int:
        given = request.params.seed
        return given + request.index if given is not None else hash((self._config.seed, request.arrival))

    def _spans(self, prompt: PreparedPrompt) -> tuple[ImageSpan, ...]:
        family = self._checkpoint.family
        row = family.text_config.hidden_size * self._checkpoint.dtype.itemsize * family.feature_levels
        return tuple(
            ImageSpan(i.content_hash, i.token_indices[0], i.end, i.num_tokens * row, i.token_indices)
            for i in prompt.images
        )

    def _max_total(self, prompt: PreparedPrompt, params: SamplingParams) -> int:
        length, limit = len(prompt.token_ids), self.max_model_len
        if length >= limit:
            raise InvalidRequestError(
                f"the prompt takes {length} tokens, the context holds {limit} of prompt and output together",
                param="messages",
                code="context_length_exceeded",
            )
        if params.max_tokens is None:
            return limit
        if length + params.max_tokens > limit:
            raise InvalidRequestError(
                f"the prompt takes {length} tokens and max_tokens is {params.max_tokens}, "
                f"the context holds {limit} of both together",
                param="max_tokens",
                code="context_length_exceeded",
            )
        return length + params.max_tokens


def _moved(image: ImageInput, cut: int) -> ImageInput:
    """The picture in a prompt whose first ``cut`` tokens are gone."""
    if image.start < cut:
        raise InvalidRequestError(
            f"truncate_prompt_tokens would cut off a picture (its first token is number {image.start}, "
            f"the first {cut} would go)",
            param="truncate_prompt_tokens",
        )
    indices = tuple(index - cut for index in image.token_indices)
    return replace(image, start=image.start - cut, token_indices=indices)
