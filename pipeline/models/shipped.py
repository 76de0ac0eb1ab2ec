"""The weights that come with the project (``models/``), each with a model card beside it."""

from __future__ import annotations

import hashlib
import importlib.metadata
import sys
from pathlib import Path

from pipeline.models.places import cache_folder

PEOPLE_DETECTOR = "people-detector/people.pt"
PERSON_DESCRIBER = "person-describer/weights.safetensors"
_SHARE = "share/watchword/models"
NANO_LAYOUT = b"2"
"""Another one when the same weights are put together in another way."""


def shipped(name: str) -> Path | None:
    """A file of ``models/``: beside the checkout, or where an installation puts it. None where it isn't."""
    places = (Path(__file__).resolve().parents[2] / "models", Path(sys.prefix) / _SHARE)
    return next((place / name for place in places if (place / name).is_file()), None) or _recorded(name)


def _recorded(name: str) -> Path | None:
    """As the installation's own record has it: pip puts such files elsewhere with ``--user``, ``--target`` and by
    Debian's settings."""
    try:
        files = importlib.metadata.files("watchword") or ()
    except importlib.metadata.PackageNotFoundError:
        return None
    found = (Path(str(file.locate())) for file in files if str(file).endswith(f"{_SHARE}/{name}"))
    return next((path.resolve() for path in found if path.is_file()), None)


def nano_folder() -> Path:
    """Where the describer is assembled: other weights or another layout, another folder. It need not be there yet."""
    weights = shipped(PERSON_DESCRIBER)
    mark = hashlib.sha256(weights.read_bytes() + NANO_LAYOUT).hexdigest()[:12] if weights is not None else "none"
    return cache_folder() / "models" / mark / "nano"
