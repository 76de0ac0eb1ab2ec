"""``watchword events``."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from pipeline.cli.options import OptionalConfigFile

events_cli = typer.Typer(help="Look after stored events: delete what is too old or too much.", no_args_is_help=True)


@events_cli.callback()
def events_group() -> None:
    """Look after stored events: delete what is too old or too much."""


@events_cli.command("prune")
def events_prune(
    config: OptionalConfigFile = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would go, and change nothing but the schema's version.")
    ] = False,
    days: Annotated[
        float | None,
        typer.Option(help="In place of retention.days, for this once.", min=0.0, show_default=False),
    ] = None,
    max_gib: Annotated[
        float | None,
        typer.Option(help="In place of retention.max_gib, for this once.", min=0.0, show_default=False),
    ] = None,
) -> None:
    """Delete events that the retention says are too old or too much, and pictures that no event names.

    `serve` does the same every few minutes; both may run at once. What is active or being described stays.
    """
    from pipeline.cli.events import run_prune

    sys.exit(run_prune(config, dry_run=dry_run, days=days, max_gib=max_gib))
