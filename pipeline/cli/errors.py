"""How commands fail: one readable reason on stderr, exit code 2, no traceback."""

from __future__ import annotations

import sys
from typing import NoReturn


class UsageProblem(Exception):
    """What was asked for can't be done; the text says why and what to do, and holds no secret."""


def readable_reason(error: Exception) -> str | None:
    """The text of an error that people can act on; None: it is a bug and deserves its traceback."""
    from pipeline.redaction import redact_own_words

    # Compared by name: an error can only be here when its module is loaded, and importing them all takes seconds.
    known = {
        "ConfigProblem",
        "UsageProblem",
        "EmbeddedValkeyError",
        "WeightsUnavailable",
        "DetectorError",
        "ClipError",
        "ConfigError",
        "ModelLoadError",
        "ModelProblem",
        "SchemaMismatch",
        "UnusableDatabase",
    }
    if any(kind.__name__ in known for kind in type(error).__mro__):
        return redact_own_words(str(error))
    return None


def fail(reason: str) -> NoReturn:
    """Says the reason and exits with 2."""
    print(f"watchword: {reason}", file=sys.stderr)
    sys.exit(2)
