"""Errors of the engine. Each names the knob, the value and the limit; none carries user text."""

from __future__ import annotations


class EngineError(Exception):
    """Base of every error that the engine raises on purpose."""


class ConfigError(EngineError, ValueError):
    """A knob of :class:`vlm_engine.EngineConfig` has a value that can't work."""


class ModelLoadError(EngineError):
    """The checkpoint can't be loaded: absent, unreachable, damaged, or of a family that isn't supported."""


class InvalidRequestError(EngineError, ValueError):
    """The request can never be served as asked (too long, bad image, bad parameter).

    Args:
        message: readable reason with the numbers.
        param: the request field at fault, in the words of the OpenAI API, when one can be named.
        code: a short machine-readable code such as ``context_length_exceeded``.
    """

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class OverloadedError(EngineError):
    """The bounded queue is full; the caller may try again after ``retry_after`` seconds."""

    def __init__(self, message: str, *, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class RequestFailedError(EngineError):
    """One accepted request failed inside the engine (encode, sample, detokenize, watchdog); its neighbours go on."""


class EngineDeadError(EngineError):
    """The engine met an error that it can't isolate; readiness is 503 from now on."""
