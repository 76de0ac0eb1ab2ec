"""Parts of a running Watchword: this same command, as a process of its own."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from pipeline.child import ChildSpec
from pipeline.cli.stacks import STACKS_SIGNAL


def part(command: str, *arguments: str, environ: Mapping[str, str], name: str | None = None) -> ChildSpec:
    """``watchword COMMAND ARGUMENTS`` under this interpreter. No argument may be a secret: everybody can read them.

    ``-P`` keeps the current folder off the import path, where a folder called ``api`` could take our package's place.
    """
    argv = (sys.executable, "-P", "-m", "pipeline.cli", command, *arguments)
    return ChildSpec(name or command, argv, environ, stacks_signal=STACKS_SIGNAL)
