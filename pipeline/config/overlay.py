"""The cameras in force: those of the configuration file, with what the API changed laid over them.

Both sides of Redis compute them with this module: ``serve``, which keeps the changes in SQL, and ``ingest``, which gets
them as a :class:`ChangeSet`. A change that no longer fits (the file says something else now, or a newer version wrote
it) costs its own camera at most: the file's settings hold then, and a camera that only the API knows is left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

from pydantic import ValidationError

from pipeline.config import CameraConfig
from pipeline.config.problems import describe
from pipeline.redaction import redact_own_words

FILE_FIELDS = ("password_file", "tls_ca_file")
"""They name files of the machine that ingest runs on, so only the configuration file may set them."""


@dataclass(frozen=True, slots=True)
class CameraChange:
    """What the API changed of one camera.

    Attributes:
        settings: keys of :class:`CameraConfig` with plain JSON values, the password among them.
        whole: the settings are all there is; otherwise they lie over the file's.
        removed: the file's camera isn't watched.
    """

    settings: Mapping[str, Any] = field(default_factory=dict)
    whole: bool = False
    removed: bool = False

    @property
    def says_nothing(self) -> bool:
        return not (self.settings or self.whole or self.removed)

    def to_plain(self) -> dict[str, Any]:
        return {"settings": dict(self.settings), "whole": self.whole, "removed": self.removed}


class MalformedChanges(ValueError):
    """The text is no set of changes; it may hold passwords, so the error doesn't repeat it."""


@dataclass(frozen=True, slots=True)
class ChangeSet:
    """All changes, by camera; ``revision`` counts up with every one of them."""

    revision: int = 0
    cameras: Mapping[str, CameraChange] = field(default_factory=dict)

    def to_json(self) -> str:
        """For Redis and for ingest's own copy. Holds passwords."""
        plain = {name: change.to_plain() for name, change in sorted(self.cameras.items()) if not change.says_nothing}
        return json.dumps({"revision": self.revision, "cameras": plain}, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str | bytes) -> ChangeSet:
        """Reads what :meth:`to_json` wrote. Raises :class:`MalformedChanges`."""
        try:
            plain = json.loads(text)
            cameras = {str(name): _change_of(change) for name, change in plain["cameras"].items()}
            return cls(int(plain["revision"]), cameras)
        except (ValueError, TypeError, KeyError, AttributeError):
            raise MalformedChanges("the cameras' changes can't be read") from None


def _change_of(plain: Mapping[str, Any]) -> CameraChange:
    return CameraChange(dict(plain["settings"]), plain["whole"] is True, plain["removed"] is True)


@dataclass(frozen=True, slots=True)
class CameraInForce:
    """A camera with where its settings come from.

    Attributes:
        in_file: whether the configuration file has it.
        changed: the keys that the API set.
    """

    config: CameraConfig
    in_file: bool
    changed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CamerasInForce:
    """Attributes:
    cameras: in the file's order, then those that the API added, by id.
    removed: cameras of the file that the API removed.
    problems: camera -> why its change is not in force, without secrets.
    """

    cameras: tuple[CameraInForce, ...] = ()
    removed: tuple[str, ...] = ()
    problems: Mapping[str, str] = field(default_factory=dict)

    @property
    def configs(self) -> tuple[CameraConfig, ...]:
        return tuple(camera.config for camera in self.cameras)

    def find(self, camera: str) -> CameraInForce | None:
        return next((found for found in self.cameras if found.config.id == camera), None)


def in_force(
    file: Sequence[CameraConfig], changes: Mapping[str, CameraChange], *, with_added: bool = True
) -> CamerasInForce:
    """Lays the changes over the file's cameras. ``with_added`` False leaves out those that only the API knows."""
    cameras: list[CameraInForce] = []
    removed: list[str] = []
    problems: dict[str, str] = {}
    for camera in file:
        change = changes.get(camera.id)
        if change is None or change.says_nothing:
            cameras.append(CameraInForce(camera, in_file=True))
        elif change.removed:
            removed.append(camera.id)
        else:
            try:
                config = apply_change(camera.id, camera, change)
            except ValidationError as error:
                problems[camera.id] = problem_text(error)
                cameras.append(CameraInForce(camera, in_file=True))
            else:
                cameras.append(CameraInForce(config, in_file=True, changed=tuple(sorted(change.settings))))
    known = {camera.id for camera in file}
    for name in sorted(changes.keys() - known) if with_added else ():
        change = changes[name]
        if change.removed or not change.whole:
            continue  # a change to a camera that the file has no longer
        try:
            config = apply_change(name, None, change)
        except ValidationError as error:
            problems[name] = problem_text(error)
        else:
            cameras.append(CameraInForce(config, in_file=False, changed=tuple(sorted(change.settings))))
    return CamerasInForce(tuple(cameras), tuple(removed), problems)


def apply_change(camera: str, base: CameraConfig | None, change: CameraChange) -> CameraConfig:
    """The camera with the change over ``base`` (the file's, None where it has none). Raises pydantic's ValidationError,
    whose text may hold secrets: show :func:`problem_text` of it."""
    below = plain_settings(base) if base is not None else {}
    if change.whole:
        below = {key: below[key] for key in FILE_FIELDS if key in below}
    if "password" in change.settings:
        below.pop("password_file", None)
    return CameraConfig.model_validate({**below, **change.settings, "id": camera})


def plain_settings(camera: CameraConfig) -> dict[str, Any]:
    """What was said about the camera, with user name and password out of the URL in fields of their own.

    Secrets stay :class:`pydantic.SecretStr`.
    """
    return without_login({key: getattr(camera, key) for key in camera.model_fields_set})


def without_login(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings whose ``url`` and ``substream_url`` hold no user info; the former's goes into fields of its own.

    User name and password that are given as fields stand.
    """
    out = dict(settings)
    for key in ("substream_url", "url"):
        url = out.get(key)
        if not isinstance(url, str) or "://" not in url:
            continue
        parts = urlsplit(url)
        login, at, host = parts.netloc.rpartition("@")
        if not at:
            continue
        out[key] = urlunsplit(parts._replace(netloc=host))
        if out.get("username") is None:
            user, _, password = login.partition(":")
            out["username"] = unquote(user)
            if out.get("password") is None and out.get("password_file") is None:
                out["password"] = unquote(password)
    return out


def problem_text(error: ValidationError) -> str:
    """What pydantic complains about, in the words of the configuration's errors, without any secret."""
    return "; ".join(text for _, text in problem_texts(error))


def problem_texts(error: ValidationError) -> list[tuple[str, str]]:
    """``(path, text)`` of each complaint about a camera's settings, such as ``("fps", "fps is -1; must be ...")``."""
    return [
        (_path(details["loc"]), redact_own_words(describe(CameraConfig, details, None)))
        for details in error.errors(include_url=False)
    ]


def _path(loc: Iterable[str | int]) -> str:
    path = ""
    for step in loc:
        path += f"[{step}]" if isinstance(step, int) else f".{step}" if path else step
    return path
