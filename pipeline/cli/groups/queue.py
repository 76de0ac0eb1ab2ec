"""``watchword queue``, and ``watchword queue dead``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from pipeline.cli.options import OptionalConfigFile

queue_cli = typer.Typer(help="Look at the queue of crops between ingest and serve.")
dead_cli = typer.Typer(no_args_is_help=True, help="Crops that were put aside after failing too often.")
queue_cli.add_typer(dead_cli, name="dead")

JsonOption = Annotated[bool, typer.Option("--json", help="JSON, for scripts.")]
LetterIds = Annotated[list[str] | None, typer.Argument(help="As `list` shows them.", metavar="ID", show_default=False)]
EveryLetter = Annotated[bool, typer.Option("--all", help="All that are kept.")]


@queue_cli.callback(invoke_without_command=True)
def queue(
    context: typer.Context,
    config: OptionalConfigFile = None,
    as_json: JsonOption = False,
    watch: Annotated[bool, typer.Option("--watch", help="Again each second, until Ctrl-C.")] = False,
) -> None:
    """How many crops wait and for how long, by camera; who describes; what was dropped and why.

    Asks Redis itself, so it works whether serve runs or not.
    """
    if context.invoked_subcommand is None:
        from pipeline.cli.queue import run_queue

        sys.exit(run_queue(config, as_json=as_json, watch=watch))


@dead_cli.command("list")
def dead_list(
    config: OptionalConfigFile = None,
    limit: Annotated[int, typer.Option(help="Newest first.", min=1, max=10_000)] = 50,
    as_json: JsonOption = False,
) -> None:
    """Which crops were put aside, and why."""
    from pipeline.cli.queue import list_dead

    sys.exit(list_dead(config, limit=limit, as_json=as_json))


@dead_cli.command("show")
def dead_show(
    letter: Annotated[str, typer.Argument(help="As `list` shows it.", metavar="ID")],
    config: OptionalConfigFile = None,
    picture: Annotated[
        Path | None, typer.Option(help="Write its picture to this file.", metavar="FILE.jpg", show_default=False)
    ] = None,
) -> None:
    """All that is known of one, and its picture."""
    from pipeline.cli.queue import show_dead

    sys.exit(show_dead(config, letter, picture))


@dead_cli.command("replay")
def dead_replay(letters: LetterIds = None, config: OptionalConfigFile = None, every: EveryLetter = False) -> None:
    """Queue them once more, as new crops: with the model and the words that serve has now."""
    from pipeline.cli.queue import replay_dead

    sys.exit(replay_dead(config, letters or [], every=every))


@dead_cli.command("drop")
def dead_drop(letters: LetterIds = None, config: OptionalConfigFile = None, every: EveryLetter = False) -> None:
    """Throw them away. Their events keep saying that they failed."""
    from pipeline.cli.queue import drop_dead

    sys.exit(drop_dead(config, letters or [], every=every))
