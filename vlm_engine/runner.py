"""Executes a plan: encodes pictures, then one packed forward of decodes and prefill chunks, then sampling's logits."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from vlm_engine import attention
from vlm_engine.attention import AttentionBackend, KVCache, StepMetadata
from vlm_engine.attention.torch_backend import TorchBackend
from vlm_engine.encoder_cache import EncoderCache, ImageFeatures, join_features
from vlm_engine.encoder_task import EncoderItem, EncoderTask
from vlm_engine.errors import ConfigError
from vlm_engine.sampler import Sample, score

if TYPE_CHECKING:
    from vlm_engine.config import EngineConfig
    from vlm_engine.loader import Checkpoint
    from vlm_engine.request import Request
    from vlm_engine.scheduler import Chunk

GIB = 1024**3
SCORED_ROWS = 64
"""Prompt tokens whose logits exist at once: with 150,000 tokens of vocabulary they take 38 MB."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The decoder's numbers that the KV cache depends on."""

    layers: int
    heads: int
    kv_heads: int
    head_dim: int

    @staticmethod
    def of(text_config: Any) -> ModelShape:
        """Read from a transformers text configuration."""
        heads = text_config.num_attention_heads
        head_dim = getattr(text_config, "head_dim", None) or text_config.hidden_size // heads
        kv_heads = getattr(text_config, "num_key_value_heads", None) or heads
        return ModelShape(text_config.num_hidden_layers, heads, kv_heads, head_dim)

    def bytes_per_token(self, dtype: torch.dtype) -> int:
        """K and V of one token in all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * dtype.itemsize


class ModelRunner:
    """Owns the model and the KV tensors. Used by the engine thread alone.

    Args:
        checkpoint: the loaded model.
        config: sizes and the attention backend.
        encoder_cache: where features are read from.
        num_blocks: KV pages (:func:`vlm_engine.memory.count_blocks`).
    """

    def __init__(
        self, checkpoint: Checkpoint, config: EngineConfig, encoder_cache: EncoderCache, num_blocks: int
    ) -> None:
        self.family = checkpoint.family
        self._encoder = checkpoint.encoder
        self.device = checkpoint.device
        self.dtype = checkpoint.dtype
        self.shape = ModelShape.of(checkpoint.family.text_config)
        self.block_size = config.block_size
        self.backend = make_backend(
            config.attention_backend, self.shape, config.block_size, checkpoint.dtype, checkpoint.device
        )
        self.num_blocks = num_blocks
        self._features = encoder_cache
        self._hidden: torch.Tensor | None = None  # of the last forward, where a prompt is to be scored
        self._places: dict[str, int] = {}  # of its chunks: the first row
        s = self.shape
        self.kv = KVCache.allocate(
            s.layers,
            self.num_blocks,
            config.block_size,
            s.kv_heads,
            s.head_dim,
            self.dtype,
            self.device,
            self.backend.heads_first,
        )

    def encoder_items(self, inputs: Mapping[str, torch.Tensor]) -> list[EncoderItem]:
        """The parts of one picture's processor outputs that can be encoded one by one."""
        return self._encoder.items(inputs)

    def start_encode(self, items: Sequence[EncoderItem]) -> EncoderTask:
        """A task that encodes items together, nothing run yet; their tensors are copied to the device here."""
        return self._encoder.start([self._on_device(item) for item in items])

    def encode(self, inputs: Mapping[str, torch.Tensor]) -> ImageFeatures:
        """Encodes one picture to its end, item by item."""
        parts: list[ImageFeatures] = []
        for item in self.encoder_items(inputs):
            task = self.start_encode([item])
            while (features := task.advance()) is None:
                pass
            parts += features
        return join_features(parts)

    def _on_device(self, item: EncoderItem) -> EncoderItem:
        inputs = {name: tensor.to(self.device, non_blocking=True) for name, tensor in item.inputs.items()}
        return replace(item, inputs=inputs)

    def forward(self, chunks: Sequence[Chunk]) -> torch.Tensor:
        """One packed forward.

        Returns:
            Logits ``[rows, vocabulary]`` of the last token of each chunk that samples, in the order of the chunks.
        """
        ids, positions, slots, sequences = self._pack(chunks)
        step = StepMetadata(
            self.kv,
            self.backend,
            sequences,
            slots.to(self.device),
            self.backend.prepare(sequences, self.block_size, self.shape.heads, self.shape.kv_heads, self.device),
        )
        embeds = self.family.embedding(ids.to(self.device))
        image_rows, levels = self._merge_features(chunks, embeds)
        hidden = self.family.decoder(
            inputs_embeds=embeds[None],
            attention_mask=None,
            use_cache=False,
            step=step,
            **self.family.decoder_inputs(positions.to(self.device), levels, image_rows),
        ).last_hidden_state[0]
        self._hidden = hidden if any(chunk.request.unscored for chunk in chunks) else None
        self._places = {chunk.request.key: s.start for s, chunk in zip(sequences, chunks, strict=True)}
        rows = [s.start + s.length - 1 for s, chunk in zip(sequences, chunks, strict=True) if chunk.samples]
        logits: torch.Tensor = self.family.head(hidden[rows])
        return logits

    def score(self, chunk: Chunk) -> list[Sample]:
        """Log-probabilities of the prompt's tokens that follow a token of this chunk of the last :meth:`forward`.

        Tokens scored already are left out. Logits exist for :data:`SCORED_ROWS` rows at a time only.
        """
        request = chunk.request
        if self._hidden is None:
            raise RuntimeError(f"the last forward kept nothing to score request {request.request_id} with")
        end = min(chunk.start + chunk.length, request.num_prompt - 1)
        samples: list[Sample] = []
        for start in range(max(chunk.start, request.scored), end, SCORED_ROWS):
            stop = min(start + SCORED_ROWS, end)
            row = self._places[request.key] + start - chunk.start
            logits = self.family.head(self._hidden[row : row + stop - start])
            tokens = request.token_ids[start + 1 : stop + 1]
            samples += score(logits, tokens, request.params.prompt_logprobs or 0)
        return samples

    def _pack(
        self, chunks: Sequence[Chunk]
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, tuple[attention.Sequence, ...]]:
        """Token ids ``[t]``, positions ``[p, t]``, page slots ``[t]``, and each chunk's place in the batch."""
        ids: list[int] = []
        positions: list[torch.Tensor] = []
        slots: list[torch.Tensor] = []
        sequences: list[attention.Sequence] = []
        for chunk in chunks:
            request, end = chunk.request, chunk.start + chunk.length
            sequences.append(attention.Sequence(len(ids), chunk.length, end, tuple(request.blocks)))
            ids += request.token_ids[chunk.start : end]
            positions.append(chunk_positions(request, chunk.start, end))
            index = torch.arange(chunk.start, end)
            blocks = torch.tensor(request.blocks)[index // self.block_size]
            slots.append(blocks * self.block_size + index % self.block_size)
        return torch.tensor(ids), torch.cat(positions, dim=1), torch.cat(slots), tuple(sequences)

    def _merge_features(
        self, chunks: Sequence[Chunk], embeds: torch.Tensor
    ) -> tuple[torch.Tensor | None, list[torch.Tensor]]:
        """Writes image features over their placeholders' embeddings, in place.

        Returns:
            The batch rows that hold image features (None without any), and the deepstack levels for those rows.
        """
        rows: list[int] = []
        parts: list[ImageFeatures] = []
        base = 0
        for chunk in chunks:
            end = chunk.start + chunk.length
            for image in chunk.request.prompt.images if chunk.request.prompt else ():
                low, high = bisect_left(image.token_indices, chunk.start), bisect_left(image.token_indices, end)
                if low < high:
                    whole = self._features.get(image.content_hash)
                    deepstack = tuple(level[low:high] for level in whole.deepstack)
                    parts.append(ImageFeatures(whole.rows[low:high], deepstack))
                    rows += [base + index - chunk.start for index in image.token_indices[low:high]]
            base += chunk.length
        if not rows:
            return None, []
        at = torch.tensor(rows, device=self.device)
        embeds.index_copy_(0, at, torch.cat([part.rows for part in parts]).to(embeds.dtype))
        levels = [torch.cat(level) for level in zip(*(part.deepstack for part in parts), strict=True)]
        return at, levels


def chunk_positions(request: Request, start: int, end: int) -> torch.Tensor:
    """int64 ``[p, end - start]``: the prompt's own positions, then (past its end) index plus the prompt's delta."""
    prompt = request.prompt
    if prompt is None or prompt.positions is None:
        return torch.arange(start, end)[None]
    inside = prompt.positions[:, start : min(end, request.num_prompt)]
    if end <= request.num_prompt:
        return inside
    after = torch.arange(max(start, request.num_prompt), end) + prompt.position_delta
    return torch.cat([inside, after.expand(prompt.positions.shape[0], -1)], dim=1)


def make_backend(
    name: str, shape: ModelShape, block_size: int, dtype: torch.dtype, device: torch.device
) -> AttentionBackend:
    """ "auto" is the torch backend until another is proven faster on a device.

    Raises:
        ConfigError: the backend doesn't cover the device, the model or the block size.
    """
    if name != "triton":
        return TorchBackend(dtype)
    try:
        from vlm_engine.attention.triton_backend import AttentionShape, TritonBackend
    except ImportError as error:
        raise ConfigError(f'attention_backend is "triton", which needs the package triton: {error}') from error
    return TritonBackend(AttentionShape(shape.heads, shape.kv_heads, shape.head_dim, block_size, dtype), device)
