"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ConfigFile = Annotated[
    Path, typer.Option("--config", "-c", help="The YAML file (see configs/ for ready ones).", show_default=False)
]
OptionalConfigFile = Annotated[
    Path | None,
    typer.Option("--config", "-c", help="The YAML file; without it, defaults and the environment.", show_default=False),
]
ModelOption = Annotated[
    str | None,
    typer.Option(
        "--model", help="A local folder, a Hugging Face hub id or a preset.", show_default=False, metavar="NAME"
    ),
]
