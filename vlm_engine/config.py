"""The engine's one configuration object. Knobs that vLLM has too carry vLLM's names and meanings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from vlm_engine.errors import ConfigError

GIB = 1024**3
MIN_PREPROCESS_MEMORY = 64 * 1024**2


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Everything that decides how the engine runs.

    Attributes:
        model: a local folder or a Hugging Face hub id.
        revision: branch, tag or commit of a hub model.
        dtype: "auto" (the checkpoint's own; on a CPU bfloat16 only where the processor has it), "float32", "bfloat16",
            "float16".
        device: "auto" (CUDA when there is one), "cpu", "cuda", "cuda:1".
        max_num_batched_tokens: most new tokens in one step, decodes included. 2,048: on a data-centre GPU a step of
            that size stays compute-bound, and the KV prefix of a long prompt is read seldom enough.
        target_itl_ms: how long a step may take while anybody decodes: prefill and pictures get only the time that the
            step-time model says is left. "auto" = twice what the decodes take by themselves; None = only
            ``max_num_batched_tokens`` counts, as in vLLM.
        max_num_seqs: most requests that run at once.
        max_model_len: most tokens of prompt and output together; None = the model's own limit, cut to
            what the KV cache holds.
        block_size: tokens in one KV page.
        kv_cache_memory: bytes for the KV cache; None = 90 % of the free memory on CUDA after profiling, 1 GiB on a CPU.
        enable_prefix_caching: find full KV blocks again by their chained hash.
        encoder_cache_memory: bytes for image features that are kept by content.
        encoder_slicing: cut the vision encoder into slices that fit into a step's time; False encodes a picture in one
            piece, as other engines do (to compare with).
        encoder_pack_patches: small pictures are encoded together up to so many patches; None = 1,024 on a CPU, 16,384
            on CUDA.
        encoder_side_stream: on CUDA, run slices on a low-priority stream beside the decoder's.
        calibration_dir: where measured step times are kept, a file for each model and device; None = measure at each
            start.
        max_queued_requests: bound of the waiting queue; beyond it requests are refused with a time to try again.
        long_prefill_token_threshold: most prefill tokens of one request in one step; 0 = no bound but the budget.
        prefill_quantum: tokens that a running prefill gets per turn in the round-robin.
        max_pixels: pixel cap of an input picture, checked before it is decoded.
        max_image_tokens_interactive, max_image_tokens_background: most tokens that one picture of a request of that
            class takes: larger ones are scaled down or cut into fewer tiles (``image_fit.py``); None = what the
            checkpoint's processor makes of it.
        image_splitting_interactive, image_splitting_background: whether pictures are cut into tiles, where the family
            does that; None = as the checkpoint's processor does.
        low_detail_image_tokens: most tokens of a picture with ``detail: low``, or one whole view where that takes more.
        preprocess_workers: processes that decode and resize pictures; None = 1 on 4 cores or fewer, else 2.
        preprocess_memory: bytes that one of them may take beyond what it has once it is loaded; None = 512 MiB and 32
            bytes for each of ``max_pixels`` (measured: 31 for 40 megapixels with alpha through Qwen's processor).
        preprocess_cpu_s: seconds of processor time for one picture.
        num_threads: torch threads of the engine; None leaves torch's default.
        attention_backend: "auto", "torch" (any device) or "triton" (CUDA).
        jump_forward: tokens that a grammar leaves no choice about are taken at once and computed together, as a
            prompt's (SGLang's term); False samples them one by one.
        seed: base of the random streams of requests that bring no seed of their own.
        watchdog_s: a request that makes no progress for so many seconds is failed.
    """

    model: str
    revision: str | None = None
    dtype: str = "auto"
    device: str = "auto"
    max_num_batched_tokens: int = 2048
    target_itl_ms: float | Literal["auto"] | None = "auto"
    max_num_seqs: int = 64
    max_model_len: int | None = None
    block_size: int = 16
    kv_cache_memory: int | None = None
    enable_prefix_caching: bool = True
    encoder_cache_memory: int = GIB // 4
    encoder_slicing: bool = True
    encoder_pack_patches: int | None = None
    encoder_side_stream: bool = False
    calibration_dir: str | None = None
    max_queued_requests: int = 256
    long_prefill_token_threshold: int = 0
    prefill_quantum: int = 256
    max_pixels: int = 40_000_000
    max_image_tokens_interactive: int | None = None
    max_image_tokens_background: int | None = None
    image_splitting_interactive: bool | None = None
    image_splitting_background: bool | None = None
    low_detail_image_tokens: int = 256
    preprocess_workers: int | None = None
    preprocess_memory: int | None = None
    preprocess_cpu_s: float = 60.0
    num_threads: int | None = None
    attention_backend: str = "auto"
    jump_forward: bool = True
    seed: int = 0
    watchdog_s: float = 120.0

    def __post_init__(self) -> None:
        """Raises :class:`ConfigError` naming the knob, the value and the limit."""
        if not self.model:
            raise ConfigError("model is empty; give a local folder or a hub id")
        _one_of("dtype", self.dtype, ("auto", "float32", "bfloat16", "float16"))
        _one_of("attention_backend", self.attention_backend, ("auto", "torch", "triton"))
        for name in ("max_num_batched_tokens", "max_num_seqs", "block_size", "max_queued_requests", "prefill_quantum"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}, allowed is 1 or more")
        if self.encoder_pack_patches is not None and self.encoder_pack_patches < 1:
            raise ConfigError(f"encoder_pack_patches is {self.encoder_pack_patches}, allowed is 1 or more, or None")
        if self.long_prefill_token_threshold < 0:
            raise ConfigError(
                f"long_prefill_token_threshold is {self.long_prefill_token_threshold}, allowed is 0 (off) or more"
            )
        if self.max_num_seqs > self.max_num_batched_tokens:
            raise ConfigError(
                f"max_num_seqs is {self.max_num_seqs}, more than max_num_batched_tokens {self.max_num_batched_tokens}: "
                "a step could not give every running decode its token"
            )
        if isinstance(self.target_itl_ms, float | int) and self.target_itl_ms <= 0:
            raise ConfigError(f'target_itl_ms is {self.target_itl_ms}, allowed are more than 0, "auto" and None')
        if self.preprocess_memory is not None and self.preprocess_memory < MIN_PREPROCESS_MEMORY:
            raise ConfigError(
                f"preprocess_memory is {self.preprocess_memory}, allowed are {MIN_PREPROCESS_MEMORY} bytes or more"
            )
        if self.preprocess_cpu_s <= 0:
            raise ConfigError(f"preprocess_cpu_s is {self.preprocess_cpu_s}, allowed is more than 0")
        for name in ("max_image_tokens_interactive", "max_image_tokens_background", "low_detail_image_tokens"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}, allowed is 1 or more")
        if self.max_model_len is not None and self.max_model_len < 2:
            raise ConfigError(f"max_model_len is {self.max_model_len}, allowed is 2 or more")

    @property
    def preprocess_memory_bytes(self) -> int:
        """``preprocess_memory``, or what ``max_pixels`` asks for."""
        return GIB // 2 + 32 * self.max_pixels if self.preprocess_memory is None else self.preprocess_memory


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ConfigError(f"{name} is {value!r}, allowed are {', '.join(allowed)}")
