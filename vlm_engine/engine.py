"""The engine as its users see it: load, prepare, submit, stream, abort.

One thread owns all engine state (:class:`vlm_engine.core.EngineCore`); callers reach it through an inbox, and it
answers through each request's :class:`vlm_engine.stream.OutputStream`.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import StrEnum
from functools import partial
from typing import Any, TypeVar

import torch

from vlm_engine.calibration import load_or_measure
from vlm_engine.config import EngineConfig
from vlm_engine.core import EngineCore
from vlm_engine.encoder_cache import EncoderCache
from vlm_engine.encoder_lane import make_lane
from vlm_engine.encoder_stage import CPU_PACK, CUDA_PACK
from vlm_engine.engine_thread import EngineThread
from vlm_engine.errors import EngineDeadError, InvalidRequestError, OverloadedError, RequestFailedError
from vlm_engine.image_size import SizeLimits, SizeRule
from vlm_engine.intake import Intake
from vlm_engine.loader import Checkpoint, load
from vlm_engine.memory import count_blocks
from vlm_engine.metrics import EngineMetrics
from vlm_engine.outputs import FinishReason, RequestOutput
from vlm_engine.preprocess import ImageProcessorPool, ProcessedImage
from vlm_engine.prompt import Message, PreparedPrompt, PriorityClass
from vlm_engine.runner import ModelRunner
from vlm_engine.sampling_params import SamplingParams
from vlm_engine.steps import StepLog
from vlm_engine.stream import OutputStream
from vlm_engine.structured import GrammarCompiler
from vlm_engine.worker_process import WorkerLimits

logger = logging.getLogger(__name__)

CALIBRATION_SIDES = (112, 224, 448, 896)
"""Sides in pixels of the pictures with which slices are measured."""
T = TypeVar("T")

PREPARE_THREADS = 2
"""One that tokenises a long text doesn't hold up the others."""


class EngineState(StrEnum):
    """STOPPED -> LOADING -> READY -> STOPPED; DEAD after an error that can't be isolated."""

    STOPPED = "stopped"
    LOADING = "loading"
    READY = "ready"
    DEAD = "dead"


class VLMEngine:
    """A vision-language model behind continuous batching, chunked prefill and paged KV.

    Args:
        config: every knob.
        on_progress: told in words what loading is doing, from the thread that called :meth:`start`.
    """

    def __init__(self, config: EngineConfig, *, on_progress: Callable[[str], None] = lambda text: None) -> None:
        self.config = config
        self.metrics = EngineMetrics()
        self.state = EngineState.STOPPED
        self.error: str | None = None
        self._on_progress = on_progress
        self._checkpoint: Checkpoint | None = None
        self._core: EngineCore | None = None
        self._pool: ImageProcessorPool | None = None
        self._image_limits: SizeLimits | None = None
        self._intake: Intake | None = None
        self._grammars: GrammarCompiler | None = None
        self._thread = EngineThread(config.watchdog_s, self._die)
        # Not asyncio's own threads: they hold Python's lock for most of their time, and the more of them want it, the
        # longer an event loop waits for its turn.
        self._readers = ThreadPoolExecutor(PREPARE_THREADS, thread_name_prefix="vlm-prepare")

    # Life ------------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Loads the model and starts the engine thread. Blocks; call it from a thread in asyncio programs.

        Raises:
            ModelLoadError: the checkpoint can't be loaded.
            ConfigError: a knob doesn't fit the checkpoint or the machine.
        """
        self.state, self.error = EngineState.LOADING, None
        try:
            core = self._load()
        except Exception as error:
            self.state, self.error = EngineState.STOPPED, str(error)
            if self._pool is not None:
                self._pool.shutdown()
            raise
        self.state = EngineState.READY
        self._thread.start(core)

    def shutdown(self) -> None:
        """Ends the thread and the preprocessing pool; unfinished requests end with ``abort``. Blocks; idempotent."""
        self._thread.stop()
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None
        if self._grammars is not None:
            self._grammars.close()
        if self.state is not EngineState.DEAD:
            self.state = EngineState.STOPPED

    def _load(self) -> EngineCore:
        config = self.config
        if config.num_threads is not None:
            torch.set_num_threads(config.num_threads)
        checkpoint = load(config, self._on_progress)
        if checkpoint.family.takes_images:
            # Started after the checkpoint proved loadable; the workers load their processor meanwhile.
            limits = WorkerLimits(config.preprocess_memory_bytes, config.preprocess_cpu_s)
            self._pool = ImageProcessorPool(
                config.model,
                config.revision,
                checkpoint.family.name,
                config.preprocess_workers,
                config.max_pixels,
                limits,
                self.metrics,
            )
        encoder_cache = EncoderCache(config.encoder_cache_memory)
        largest = None
        if self._pool is not None and checkpoint.device.type == "cuda":
            largest = self._pool.process_largest(self._check_images(self._pool, checkpoint).loosest(config))
        blocks = count_blocks(checkpoint, config, encoder_cache, largest)
        runner = ModelRunner(checkpoint, config, encoder_cache, blocks)
        lane = make_lane(checkpoint.device, config.encoder_side_stream)
        self._checkpoint = checkpoint
        core = self._core = EngineCore(
            config,
            runner,
            encoder_cache,
            self.metrics,
            lane=lane,
            pack_patches=config.encoder_pack_patches or (CPU_PACK if lane.waits else CUDA_PACK),
            interrupted=self._thread.wanted,
        )
        self._intake = Intake(config, checkpoint, core.capacity_tokens)
        vocabulary = checkpoint.family.text_config.vocab_size
        self._grammars = GrammarCompiler(checkpoint.tokenizer, vocabulary, checkpoint.end_token_ids)
        if self._pool is not None:
            self._on_progress("starting picture preprocessing")
            self._check_images(self._pool, checkpoint)
        self._on_progress("measuring step times")
        calibration = load_or_measure(checkpoint, config, runner, lane, self._calibration_pictures)
        core.step_time, core.encoder.encodings.cost = calibration.step_time, calibration.encoder
        # What loading made lives as long as the process; walking through it again and again (hundreds of milliseconds
        # for torch, transformers and a model) would be felt in a stream.
        gc.collect()
        gc.freeze()
        return core

    def _check_images(self, pool: ImageProcessorPool, checkpoint: Checkpoint) -> SizeLimits:
        """Waits for the first worker, whose processor knows what can be done. Raises :class:`ConfigError`."""
        self._image_limits = pool.size_limits()
        self._image_limits.check(self.config)
        checkpoint.encoder.pixel_scale = pool.pixel_scale()
        return self._image_limits

    def _calibration_pictures(self) -> Sequence[Mapping[str, torch.Tensor]]:
        """Encoder inputs of square pictures, smallest first."""
        if self._pool is None or self._image_limits is None:
            return ()
        rule = self._image_limits.loosest(self.config)
        sides = [side for side in CALIBRATION_SIDES if side * side <= self.config.max_pixels]
        return [self._pool.process_blank(side, rule) for side in sides]

    # What the model is ----------------------------------------------------------------------------------------------

    @property
    def model_name(self) -> str:
        """The checkpoint's name as ``/v1/models`` gives it."""
        return self._loaded().name

    @property
    def max_model_len(self) -> int:
        """Most tokens of prompt and output together."""
        return self._ready_parts()[1].max_model_len

    @property
    def takes_images(self) -> bool:
        """Whether the model takes pictures."""
        return self._loaded().family.takes_images

    @property
    def takes_several_images(self) -> bool:
        """Whether a prompt may hold more than one picture; False while no model is loaded."""
        return self._checkpoint is not None and self._checkpoint.family.takes_several_images

    @property
    def least_image_tokens(self) -> int:
        """Fewest tokens that a picture can take; 0 for a model that takes none."""
        return self._image_limits.least if self._image_limits is not None else 0

    @property
    def tokenizer(self) -> Any:
        """The checkpoint's tokenizer."""
        return self._loaded().tokenizer

    @property
    def vocab_size(self) -> int:
        """Token ids are smaller."""
        return self._ready_parts()[1].vocab_size

    @property
    def chat_template(self) -> str | None:
        """The checkpoint's Jinja template for chats."""
        return self._loaded().chat_template

    @property
    def steps(self) -> StepLog:
        """What the last steps did."""
        return self._ready_parts()[0].steps

    @property
    def default_params(self) -> SamplingParams:
        """Sampling defaults of the checkpoint's ``generation_config.json``."""
        return self._ready_parts()[1].default_params

    # Requests --------------------------------------------------------------------------------------------------------

    async def prepare(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        mm_processor_kwargs: Mapping[str, Any] | None = None,
        truncate_prompt_tokens: int | None = None,
        priority_class: PriorityClass = PriorityClass.INTERACTIVE,
        max_image_tokens: int | None = None,
    ) -> PreparedPrompt:
        """Renders and tokenises messages and preprocesses their pictures, off the event loop and the engine thread.

        Args:
            messages: with their pictures, each with its ``detail``.
            mm_processor_kwargs: for the checkpoint's processor; they go before what the class says about splitting,
                and its bound on a picture's tokens holds nevertheless.
            priority_class: whose bounds hold for the pictures.
            max_image_tokens: a further bound on each picture's tokens.
            truncate_prompt_tokens: keeps only so many of the last tokens.

        Raises:
            InvalidRequestError: a picture or the conversation can't be used, or a picture would be cut off.
            OverloadedError: too many pictures wait.
            EngineDeadError: the engine isn't ready.
        """
        self._require_ready()
        _, intake = self._ready_parts()
        rendered = await self._in_thread(
            intake.chat.render,
            messages,
            tools=tools,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            template_kwargs=chat_template_kwargs,
        )
        limits, options = self._image_limits, mm_processor_kwargs
        rules = [
            limits.rule(self.config, priority_class, detail, options, max_image_tokens)
            for detail in rendered.details
            if limits is not None
        ]
        images = await self._process_images(rendered.images, rules)
        return await self._in_thread(intake.assemble, rendered.pieces, images, truncate_prompt_tokens)

    async def prepare_text(self, text: str, *, truncate_prompt_tokens: int | None = None) -> PreparedPrompt:
        """Tokenises plain text without a chat template; ``truncate_prompt_tokens`` keeps so many of the last tokens.

        Raises:
            InvalidRequestError: nothing is in it.
            EngineDeadError: the engine isn't ready.
        """
        self._require_ready()
        _, intake = self._ready_parts()
        ids = await self._in_thread(intake.chat.encode_text, text)
        return await self._in_thread(intake.assemble, (ids,), (), truncate_prompt_tokens)

    async def prepare_tokens(
        self, token_ids: Sequence[int], *, truncate_prompt_tokens: int | None = None
    ) -> PreparedPrompt:
        """A prompt from token ids, special ones included; not those that stand for a picture.

        Raises:
            InvalidRequestError: an id isn't the model's, or stands for a picture.
            EngineDeadError: the engine isn't ready.
        """
        self._require_ready()
        _, intake = self._ready_parts()
        intake.check_token_ids(token_ids)
        return await self._in_thread(intake.assemble, (token_ids,), (), truncate_prompt_tokens)

    async def encode(self, text: str, *, add_special_tokens: bool = True) -> tuple[int, ...]:
        """Token ids of plain text, as :meth:`prepare_text` has them; empty for an empty text.

        Raises:
            InvalidRequestError: far beyond the context.
            EngineDeadError: the engine isn't ready.
        """
        self._require_ready()
        _, intake = self._ready_parts()
        return await self._in_thread(intake.chat.encode_text, text, add_special_tokens)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of token ids, special ones included. Raises InvalidRequestError for an id that isn't the model's."""
        _, intake = self._ready_parts()
        intake.check_vocabulary("tokens", token_ids)
        text: str = self.tokenizer.decode(list(token_ids), clean_up_tokenization_spaces=False)
        return text

    def require_room(self, preparing: int = 0) -> None:
        """Raises OverloadedError when the queue is full, EngineDeadError when the engine isn't ready.

        Worth asking before a prompt is prepared: in a burst that work would be for nothing.

        Args:
            preparing: further requests that are prepared now and will be submitted; they count as waiting.
        """
        self._require_ready()
        core, _ = self._ready_parts()
        waiting = core.num_waiting + len(self._thread.inbox) + preparing
        if waiting >= self.config.max_queued_requests:
            raise OverloadedError(
                f"{waiting} requests wait already (max_queued_requests is {self.config.max_queued_requests})",
                retry_after=5.0,
            )

    async def submit(
        self,
        prompt: PreparedPrompt,
        params: SamplingParams,
        *,
        request_id: str | None = None,
        priority_class: PriorityClass = PriorityClass.INTERACTIVE,
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> OutputStream:
        """Hands a prompt to the scheduler.

        Args:
            prompt: from :meth:`prepare`.
            params: sampling and stopping.
            request_id: unique; made up when not given.
            priority_class: people before cameras.
            priority: within a class, lower first (as in vLLM).
            cache_salt: only requests with the same salt share cached prefixes.

        Raises:
            InvalidRequestError: it can never fit, with the numbers; or its grammar can't be used.
            OverloadedError: the queue is full.
            EngineDeadError: the engine isn't ready.
        """
        core, intake = self._ready_parts()
        self.require_room()
        grammar = None
        if params.structured is not None and self._grammars is not None:
            grammar = await self._grammars.matcher(params.structured, params.thinking)
            self.require_room()
        request_id = request_id or f"req-{uuid.uuid4().hex}"
        requests = intake.requests(prompt, params, request_id, priority_class, priority, cache_salt)
        core.check_fits(requests[0])
        stream = OutputStream(request_id, params.n, self.abort, len(prompt.token_ids))
        group = intake.sequences(requests, stream.deliver, grammar)
        self._thread.post(lambda core: core.add(group))
        return stream

    def abort(self, request_id: str) -> None:
        """Ends a request within one step, whatever state it is in. Any thread; unknown ids are ignored."""
        self._thread.post(lambda core: core.abort(request_id))

    async def generate(
        self, messages: Sequence[Message], params: SamplingParams | None = None, **options: Any
    ) -> AsyncIterator[RequestOutput]:
        """``prepare`` and ``submit`` in one; yields the pieces, aborts when left early.

        Raises:
            RequestFailedError: the request failed inside the engine; further errors as of prepare and submit.
        """
        kind = options.get("priority_class", PriorityClass.INTERACTIVE)
        prompt = await self.prepare(messages, priority_class=kind)
        async with await self.submit(prompt, params or self.default_params, **options) as stream:
            async for output in stream:
                if output.finish_reason is FinishReason.ERROR:
                    raise RequestFailedError(output.error or "the request failed")
                yield output

    def describe(self, images: Sequence[Any], prompt: str, *, max_tokens: int = 128, system: str | None = None) -> str:
        """Greedy answer to a question about pictures, for scripts. Blocks; not for use inside an event loop.

        Args:
            images: encoded bytes or ``PIL.Image.Image``, put before the question.
            prompt: the question.
            max_tokens: most tokens of the answer.
            system: instructions, if any.
        """
        messages: list[Message] = [{"role": "system", "content": system}] if system else []
        parts: list[Any] = [{"type": "image", "image": image} for image in images]
        messages.append({"role": "user", "content": [*parts, {"type": "text", "text": prompt}]})

        async def collect() -> str:
            params = SamplingParams(temperature=0.0, max_tokens=max_tokens)
            return "".join([output.text async for output in self.generate(messages, params)])

        return asyncio.run(collect())

    async def _in_thread(self, work: Callable[..., T], *args: Any, **options: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._readers, partial(work, *args, **options))

    async def _process_images(self, images: Sequence[Any], rules: Sequence[SizeRule]) -> tuple[ProcessedImage, ...]:
        if not images:
            return ()
        if self._pool is None:
            raise InvalidRequestError("the model takes no pictures", param="messages")
        copies = 2 if len(images) > 1 and self._loaded().family.counts_images else 1
        pool, each = self._pool, zip(images, rules, strict=True)
        try:
            # A group: the first that is refused takes its siblings out of the queue.
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(pool.process(image, rule, copies)) for image, rule in each]
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        return tuple(task.result() for task in tasks)

    def _die(self, error: str) -> None:
        self.state, self.error = EngineState.DEAD, error

    def _require_ready(self) -> None:
        if self.state is not EngineState.READY:
            raise EngineDeadError(self.error or f"the engine is {self.state}")

    def _ready_parts(self) -> tuple[EngineCore, Intake]:
        if self._core is None or self._intake is None:
            raise EngineDeadError(self.error or "the engine is not loaded")
        return self._core, self._intake

    def _loaded(self) -> Checkpoint:
        if self._checkpoint is None:
            raise EngineDeadError(self.error or "the engine is not loaded")
        return self._checkpoint
