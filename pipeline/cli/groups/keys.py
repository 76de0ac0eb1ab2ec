"""``watchword keys``."""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import Annotated

import typer

keys_cli = typer.Typer(
    no_args_is_help=True, help="Make API keys and their hashes for server.api_keys; keys themselves are stored nowhere."
)


class KeyRole(StrEnum):
    """What a key may do; docs/api.md has the table."""

    chat = "chat"
    viewer = "viewer"
    operator = "operator"
    admin = "admin"


@keys_cli.command("new")
def keys_new(
    name: Annotated[str, typer.Option(help="Whose key it is, for logs.", show_default=False)] = "",
    role: Annotated[list[KeyRole] | None, typer.Option(help="May be given several times.", show_default="chat")] = None,
) -> None:
    """Make a random key: it is shown once (on stderr), the lines for the configuration go to stdout."""
    from pipeline.cli.keys import new_key

    sys.exit(new_key(name, [str(given) for given in role or [KeyRole.chat]]))


@keys_cli.command("hash")
def keys_hash() -> None:
    """Read a key from stdin and print its hash; at least 32 random characters."""
    from pipeline.cli.keys import hash_key

    sys.exit(hash_key())
