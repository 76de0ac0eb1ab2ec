"""``watchword models``."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

models_cli = typer.Typer(no_args_is_help=True, help="Models by a short name: what they need, what is here, fetch one.")


@models_cli.command("list")
def models_list() -> None:
    """All presets: size, memory, licence, what each is good for, and whether it is here. Asks nobody."""
    from pipeline.cli.models import run_list

    sys.exit(run_list())


ModelName = Annotated[str, typer.Argument(help="A preset, a hub id or a folder.", show_default=False, metavar="NAME")]


@models_cli.command("info")
def models_info(name: ModelName) -> None:
    """What one model needs and what of it is here. Asks nobody."""
    from pipeline.cli.models import run_info

    sys.exit(run_info(name))


@models_cli.command("install")
def models_install(
    name: ModelName,
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit.", show_default=False)] = None,
) -> None:
    """Fetch a model from the Hugging Face hub into its cache, as far as its files aren't here."""
    from pipeline.cli.models import run_install

    sys.exit(run_install(name, revision))
