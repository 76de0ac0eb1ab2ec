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
from vlm_engine.structured import StructuredOutput
from vlm_engine.thinking import Thinking

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
    "StructuredOutput",
    "Thinking",
    "TokenLogprob",
    "VLMEngine",
]
