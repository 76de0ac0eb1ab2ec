"""Model families: how each encodes pictures, lays out positions and calls its decoder. Everything else is shared."""

from vlm_engine.families.base import Family
from vlm_engine.families.registry import SUPPORTED, family_of

__all__ = ["SUPPORTED", "Family", "family_of"]
