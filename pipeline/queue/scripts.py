"""The Lua scripts, read from the package's own files."""

from __future__ import annotations

from functools import cache
from importlib.resources import files


@cache
def script(name: str) -> str:
    """Text of ``name.lua`` behind the functions of ``common.lua`` that it uses."""
    folder = files("pipeline.queue")
    common = folder.joinpath("common.lua").read_text("utf-8")
    return common + "\n" + folder.joinpath(f"{name}.lua").read_text("utf-8")
