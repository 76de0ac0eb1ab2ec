"""``watchword keys``: API keys and their hashes. A key is shown once and stored nowhere."""

from __future__ import annotations

import getpass
import hashlib
import json
import secrets
import sys

from pipeline.cli.errors import UsageProblem

PREFIX = "ww-"
RANDOM_BYTES = 32
LEAST_LENGTH = 32
"""Of keys that people bring: the hash is a plain SHA-256, which protects only what can't be guessed."""


def new_key(name: str, roles: list[str]) -> int:
    """Prints a new key on stderr, and on stdout the lines of the configuration that let it in."""
    key = PREFIX + secrets.token_urlsafe(RANDOM_BYTES)
    print(f"The key, shown this once: {key}", file=sys.stderr)
    print("For the configuration:", file=sys.stderr)
    quoted = f", name: {json.dumps(name)}" if name else ""
    print(f"server:\n  api_keys:\n    - {{hash: {json.dumps(hash_of(key))}{quoted}, roles: [{', '.join(roles)}]}}")
    return 0


def hash_key() -> int:
    """Reads a key from the terminal (unseen) or the first line of stdin, and prints its hash. Raises UsageProblem."""
    key = (getpass.getpass("API key: ") if sys.stdin.isatty() else sys.stdin.readline()).strip()
    if len(key) < LEAST_LENGTH:
        raise UsageProblem(
            f"the key has {len(key)} characters, at least {LEAST_LENGTH} are needed, and random ones; "
            "`watchword keys new` makes such a key"
        )
    print(hash_of(key))
    return 0


def hash_of(key: str) -> str:
    """The form of ``server.api_keys[].hash``: ``sha256:`` and the SHA-256 of the key's UTF-8 in hex."""
    return f"sha256:{hashlib.sha256(key.encode()).hexdigest()}"
