"""Attention over paged KV: what a step looks like to a layer, and the backends that compute it."""

from vlm_engine.attention.base import AttentionBackend, KVCache, Sequence, StepMetadata, install

__all__ = ["AttentionBackend", "KVCache", "Sequence", "StepMetadata", "install"]
