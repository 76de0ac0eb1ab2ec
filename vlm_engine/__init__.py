"""A vision-language model engine: continuous batching, chunked prefill, paged KV, prefix caching.

Imports torch and transformers only.
"""

from vlm_engine.config import EngineConfig
from vlm_engine.engine import EngineState, VLMEngine
from vlm_engine.errors import (
    ConfigError,
    EngineDeadError,
    EngineError,
    InvalidRequestError,
    ModelLoadError,
    OverloadedError,
    RequestFailedError,
)
from vlm_engine.outputs import FinishReason, PositionLogprobs, RequestOutput, TokenLogprob
from vlm_engine.prompt import Message, PreparedPrompt, PriorityClass
from vlm_engine.sampling_params import SamplingParams
from vlm_engine.stream import OutputStream

__all__ = [
    "ConfigError",
    "EngineConfig",
    "EngineDeadError",
    "EngineError",
    "EngineState",
    "FinishReason",
    "InvalidRequestError",
    "Message",
    "ModelLoadError",
    "OutputStream",
    "OverloadedError",
    "PositionLogprobs",
    "PreparedPrompt",
    "PriorityClass",
    "RequestFailedError",
    "RequestOutput",
    "SamplingParams",
    "TokenLogprob",
    "VLMEngine",
]
