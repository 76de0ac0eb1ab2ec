"""Where the detector's weights come from: a path, the cache, ultralytics' download, or what comes with Watchword."""

from __future__ import annotations

import importlib
import logging
import os
import socket
import sys
import threading
from pathlib import Path
from urllib.request import getproxies

from pipeline.models.places import cache_folder
from pipeline.models.shipped import PEOPLE_DETECTOR, shipped

log = logging.getLogger(__name__)

SHIPPED = "people"
"""Names the people detector that comes with Watchword."""
STANDS_IN_FOR = "yolo26n.pt"
"""The official checkpoint in whose place it is taken where that can't be had."""
RELEASE_URL = "https://github.com/ultralytics/assets/releases"
CONNECT_TIMEOUT_S = 4.0
_TRUE = ("1", "true", "yes", "on", "y", "t")
EXPORT_SUFFIXES = ("_openvino_model", "_ncnn_model", "_saved_model", "_paddle_model", "_imx_model")


class WeightsUnavailable(RuntimeError):
    """The weights are not here and can't be fetched. The text names the file to place, and where."""

    def __init__(self, name: str, place: Path, why: str) -> None:
        super().__init__(
            f"detector weights {name!r} are not on this machine and {why}. Get {Path(name).name} on another machine "
            f"(from {RELEASE_URL}) and place it at {place}, or set detector.weights to a file or an export folder."
        )
        self.name = name
        self.place = place


def cache_dir() -> Path:
    """``$WATCHWORD_CACHE/weights`` or ``~/.cache/watchword/weights``."""
    return cache_folder() / "weights"


def find_weights(name: str) -> Path | None:
    """The file or export folder, as given or in the cache, or None. Looks at this machine only."""
    if name == SHIPPED:
        ours = shipped(PEOPLE_DETECTOR)
        return ours.resolve() if ours is not None else None
    for candidate in (Path(name).expanduser(), cache_dir() / name):
        if candidate.is_file() or (candidate.is_dir() and candidate.name.endswith(EXPORT_SUFFIXES)):
            return candidate.resolve()
    return None


def resolve_weights(name: str, download: bool = True) -> Path:
    """The weights' path; an official checkpoint that is nowhere to be found is downloaded into the cache.

    Without network, after a few seconds, YOLO26n's place is taken by the detector that comes with Watchword (people
    only), and a warning says so. ``YOLO_OFFLINE`` forbids downloading, too.

    Raises :class:`WeightsUnavailable`.
    """
    found = find_weights(name)
    if found is not None:
        return found
    if name == SHIPPED:
        raise WeightsUnavailable(name, Path(PEOPLE_DETECTOR), "are not among this installation's files")
    try:
        return _fetch(name, download)
    except WeightsUnavailable as error:
        ours = shipped(PEOPLE_DETECTOR) if name == STANDS_IN_FOR else None
        if ours is None:
            raise
        log.warning("detector: %s The people detector that comes with Watchword takes its place.", error)
        return ours.resolve()


def is_shipped(path: Path) -> bool:
    """Whether these weights are the people detector that comes with Watchword."""
    ours = shipped(PEOPLE_DETECTOR)
    return ours is not None and path == ours.resolve()


def _fetch(name: str, download: bool) -> Path:
    if len(Path(name).parts) > 1 or Path(name).suffix != ".pt":
        place = Path(name).expanduser().absolute()
        raise WeightsUnavailable(name, place, "only official checkpoints given by name, as yolo26n.pt, are downloaded")
    place = cache_dir() / name
    if not download:
        raise WeightsUnavailable(name, place, "downloading is switched off")
    if os.environ.get("YOLO_OFFLINE", "").strip().lower() in _TRUE:
        raise WeightsUnavailable(name, place, "YOLO_OFFLINE forbids downloading them")
    if not _reachable("github.com", 443):
        raise WeightsUnavailable(name, place, "github.com can't be reached from here")
    _download(name, place)
    return place.resolve()


def prepare_ultralytics() -> None:
    """Imports ultralytics so that it neither installs packages nor sends usage data nor looks for new versions.

    All three are decided at its import. To be called before anything else imports it. OpenVINO, which ultralytics
    imports for an export, sends usage data too, at its own import and without having asked; it does without the
    package that sends them. (A child process that it forks for that keeps our signal handlers and outlasts a stop:
    where the internet can't be reached, ingest then waited for it at its end.)
    """
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]  # importing it fails from now on
    os.environ.setdefault("YOLO_AUTOINSTALL", "false")
    os.environ.setdefault("YOLO_VERBOSE", "false")
    before = os.environ.get("YOLO_OFFLINE")
    os.environ["YOLO_OFFLINE"] = "true"
    try:
        importlib.import_module("ultralytics.utils")
    finally:
        if before is None:
            del os.environ["YOLO_OFFLINE"]
        else:
            os.environ["YOLO_OFFLINE"] = before


def _download(name: str, place: Path) -> None:
    """Ultralytics' own download with its progress bar, without its retries of up to 35 s."""
    prepare_ultralytics()
    from ultralytics import utils
    from ultralytics.utils.downloads import attempt_download_asset

    log.info("downloading %s to %s", name, place.parent)
    verbose, level = utils.VERBOSE, utils.LOGGER.level
    try:
        utils.VERBOSE = True  # without it there is no progress bar
        utils.LOGGER.setLevel(logging.INFO)
        place.parent.mkdir(parents=True, exist_ok=True)
        attempt_download_asset(place, retry=0)
    except (OSError, RuntimeError, MemoryError) as error:
        raise WeightsUnavailable(name, place, f"the download failed ({type(error).__name__}: {error})") from error
    finally:
        utils.VERBOSE = verbose
        utils.LOGGER.setLevel(level)
    if not place.is_file():
        raise WeightsUnavailable(name, place, "ultralytics has no release of that name")


def _reachable(host: str, port: int) -> bool:
    """Whether a connection opens soon. With a proxy in the environment the download itself finds out."""
    if "https" in getproxies():
        return True
    answered = threading.Event()

    def connect() -> None:
        try:
            socket.create_connection((host, port), timeout=CONNECT_TIMEOUT_S).close()
            answered.set()
        except OSError:
            pass

    # Resolving a name can take far longer than any timeout that can be given.
    thread = threading.Thread(target=connect, name="reach-weights", daemon=True)
    thread.start()
    thread.join(CONNECT_TIMEOUT_S)
    return answered.is_set()
