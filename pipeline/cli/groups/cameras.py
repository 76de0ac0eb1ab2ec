"""``watchword cameras``."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

cameras_cli = typer.Typer(help="See the cameras of a running server, or find new ones.", no_args_is_help=True)


@cameras_cli.command("list")
def cameras_list(
    url: Annotated[str, typer.Option(help="A running server.")] = "http://127.0.0.1:8000",
    api_key: Annotated[
        str | None, typer.Option(envvar="WATCHWORD_API_KEY", help="When the server asks for one.", show_default=False)
    ] = None,
) -> None:
    """List the cameras of a running server: state, frames a second, where their settings come from."""
    from pipeline.cli.cameras import run_list

    sys.exit(run_list(url, api_key))


@cameras_cli.command("discover")
def cameras_discover(
    timeout: Annotated[float, typer.Option(help="Seconds to wait for answers.", min=1, max=60)] = 4.0,
    interface: Annotated[
        str | None,
        typer.Option(
            help="This machine's address in the network to search.",
            show_default="the default route's",
            metavar="ADDRESS",
        ),
    ] = None,
) -> None:
    """Find cameras in the local network by ONVIF's WS-Discovery; needs watchword\\[onvif].

    Asks the devices that answer for their names, without a password.
    """
    from pipeline.cli.cameras import run_discover

    sys.exit(run_discover(timeout, interface))
