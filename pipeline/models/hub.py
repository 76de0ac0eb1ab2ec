"""Checkpoints from the Hugging Face hub: what is here, and getting the rest of it."""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

WANTED = ("*.json", "*.txt", "*.jinja", "*.safetensors")
"""All that loading needs: no copies of the weights in other formats."""
PROBE_S = 4.0
"""A hub that hasn't answered by then is as good as away for somebody who waits."""
_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_TOKENIZERS = ("tokenizer.json", "vocab.json", "tokenizer.model")

State = Literal["here", "partly here", "not here"]


class ModelProblem(Exception):
    """A checkpoint can't be had; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class Local:
    """What this machine has of a checkpoint.

    Attributes:
        folder: where its files lie; None without any.
        size: bytes of its files, unfinished downloads included.
        missing: files without which it can't be loaded.
    """

    folder: Path | None
    size: int = 0
    missing: tuple[str, ...] = ()

    @property
    def state(self) -> State:
        """In words."""
        if self.folder is None:
            return "partly here" if self.size else "not here"
        return "partly here" if self.missing else "here"


def look(model: str, revision: str | None = None) -> Local:
    """What is here of a local folder, or of a hub id in Hugging Face's cache. Asks nobody."""
    folder = Path(model).expanduser()
    if folder.is_dir():
        return Local(folder, _size(folder), _missing(folder))
    from huggingface_hub import constants, try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.file_download import repo_folder_name

    try:
        config = try_to_load_from_cache(model, "config.json", revision=revision)
    except HFValidationError:
        return Local(None)
    blobs = Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=model, repo_type="model") / "blobs"
    size = _size(blobs) if blobs.is_dir() else 0
    if not isinstance(config, str):
        return Local(None, size)
    snapshot = Path(config).parent
    return Local(snapshot, size, _missing(snapshot))


def download(model: str, revision: str | None = None) -> Path:
    """Fetches what is missing of a hub checkpoint into Hugging Face's cache.

    A transfer that breaks off goes on where it was. Files that are here are not fetched again; one that was unfinished
    when its process ended begins anew (huggingface_hub 2 gives each process a temporary file of its own).

    Shows huggingface_hub's own bars on stderr.

    Returns:
        The folder with its files.

    Raises:
        ModelProblem: the hub is away or doesn't have it, or the disk has no room.
    """
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OfflineModeIsEnabled

    wanted = list(WANTED)
    away: tuple[type[Exception], ...] = (OfflineModeIsEnabled, LocalEntryNotFoundError, *_transport_errors(), OSError)
    try:
        if constants.HF_HUB_OFFLINE:
            raise OfflineModeIsEnabled("HF_HUB_OFFLINE is set")
        with _no_bars():
            files = snapshot_download(model, revision=revision, allow_patterns=wanted, dry_run=True)
        _refuse_full_disk(model, sum(file.file_size or 0 for file in files if file.will_download))
        return Path(snapshot_download(model, revision=revision, allow_patterns=wanted))
    except HFValidationError:
        raise ModelProblem(f"{model} is neither a folder nor a hub id like owner/name") from None
    except HfHubHTTPError as error:
        raise ModelProblem(_refused(model, revision, error)) from None
    except away as error:
        if isinstance(error.__cause__, HfHubHTTPError):
            raise ModelProblem(_refused(model, revision, error.__cause__)) from None
        raise ModelProblem(_unreachable(model, error)) from None


def answers(model: str) -> bool:
    """Whether the hub has the model and says so within :data:`PROBE_S`; its file hosts, too, which firewalls may treat
    otherwise."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return False
    base = f"{constants.ENDPOINT}/{model}/resolve/main"
    # Weights in several files have another name.
    return _within(
        PROBE_S, lambda: _status(f"{base}/config.json") == 200 and _status(f"{base}/{_SINGLE}") in (200, 404)
    )


def by_hand(model: str) -> str:
    """What to do on a machine that can't reach the hub."""
    return (
        f"try again with access to it (HF_ENDPOINT names a mirror), or on another machine: hf download {model} "
        "--local-dir DIR, copy DIR to this one and write engine.model: DIR"
    )


def _missing(folder: Path) -> tuple[str, ...]:
    """What a checkpoint's folder lacks: configuration, tokenizer, and every file of the weights."""
    missing = [] if (folder / "config.json").is_file() else ["config.json"]
    if not any((folder / name).is_file() for name in _TOKENIZERS):
        missing.append(_TOKENIZERS[0])
    index = folder / _INDEX
    if index.is_file():
        try:
            shards = set(json.loads(index.read_text())["weight_map"].values())
        except (OSError, ValueError, KeyError, AttributeError):
            return (*missing, _INDEX)
        missing += sorted(shard for shard in shards if not (folder / shard).is_file())
    elif not (folder / _SINGLE).is_file():
        missing.append(_SINGLE)
    return tuple(missing)


def _size(folder: Path) -> int:
    """Bytes of the files in a folder, links followed."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _refuse_full_disk(model: str, needed: int) -> None:
    from huggingface_hub import constants

    cache = Path(constants.HF_HUB_CACHE)
    there = next(folder for folder in (cache, *cache.parents) if folder.is_dir())
    free = shutil.disk_usage(there).free
    if needed > free:
        raise ModelProblem(
            f"{model} takes {needed / 1e9:.1f} GB more, {there} has {free / 1e9:.1f} GB left; "
            "make room, or let HF_HOME name a folder on another disk"
        )


def _refused(model: str, revision: str | None, error: Exception) -> str:
    from huggingface_hub import constants
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    at = constants.ENDPOINT
    if isinstance(error, GatedRepoError):
        return f"{model} is open to those alone who accepted its terms: do so at {at}/{model}, then run hf auth login"
    if isinstance(error, RevisionNotFoundError):
        return f"{model} has no revision {revision} at {at}"
    if isinstance(error, RepositoryNotFoundError):
        return f"{at} has no model {model}, or none that you may see (hf auth login)"
    status = getattr(getattr(error, "response", None), "status_code", "no answer")
    return f"{model}: the hub at {at} answered {status}; {by_hand(model)}"


def _unreachable(model: str, error: Exception) -> str:
    from huggingface_hub import constants
    from huggingface_hub.errors import OfflineModeIsEnabled

    if isinstance(error, OfflineModeIsEnabled):
        return f"{model} is not all here, and HF_HUB_OFFLINE forbids to download it; unset it, or {by_hand(model)}"
    if isinstance(error, OSError) and error.errno is not None and error.strerror and not _of_network(error):
        return f"{model} can't be written to {constants.HF_HUB_CACHE}: {os.strerror(error.errno)}"
    away = f"the hub at {constants.ENDPOINT} can't be reached or broke off"
    return f"{model}: {away}; whole files that came are kept; {by_hand(model)}"


@contextmanager
def _no_bars() -> Iterator[None]:
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    if are_progress_bars_disabled():
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()


def _transport_errors() -> tuple[type[Exception], ...]:
    """huggingface_hub speaks by httpx or by httpx2, as its version has it."""
    return tuple(sys.modules[name].TransportError for name in ("httpx", "httpx2") if name in sys.modules)


def _of_network(error: OSError) -> bool:
    return isinstance(error, ConnectionError | TimeoutError) or type(error).__module__ != "builtins"


def _status(url: str) -> int:
    """Of a HEAD request, redirects followed; 0 for no answer, and for a page (a firewall's) in the file's place."""
    request = urllib.request.Request(url, method="HEAD", headers={"User-Agent": "watchword"})
    try:
        with urllib.request.urlopen(request, timeout=PROBE_S) as answer:
            return 0 if answer.headers.get_content_type() == "text/html" else int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except (OSError, ValueError):
        return 0


def _within(seconds: float, question: Callable[[], bool]) -> bool:
    """Its answer, or False when there is none in time: looking up a name without network may take much longer."""
    said: list[bool] = []
    thread = threading.Thread(target=lambda: said.append(question()), daemon=True)
    thread.start()
    thread.join(seconds)
    return bool(said and said[0])
