"""The command ``watchword``. The roof of the project: may import every package, lazily, and nothing imports it."""

from __future__ import annotations


def main() -> None:
    """Entry point of the command."""
    from pipeline.cli.app import run

    run()
