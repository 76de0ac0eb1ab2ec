"""Where this machine keeps what Watchword makes or fetches."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """``$WATCHWORD_CACHE``, else ``~/.cache/watchword``."""
    root = os.environ.get("WATCHWORD_CACHE")
    return Path(root).expanduser() if root else Path.home() / ".cache" / "watchword"
