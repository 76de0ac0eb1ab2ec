"""Reads the configuration: a YAML file, the environment over it, validated once, all errors reported together.

Two conventions bring in what should not stand in the file:

* Any text in the file may hold ``${NAME}`` or ``${NAME:-default}``: the environment variable of that name. ``$${`` is a
  literal ``${``.
* ``WATCHWORD_<SECTION>__<KEY>`` overrides one value: ``WATCHWORD_SERVER__PORT=9000``,
  ``WATCHWORD_CAMERAS__0__URL=rtsp://...``. Lists and sections as a whole are JSON:
  ``WATCHWORD_SERVER__API_KEYS='[{"hash": "sha256:..."}]'``. An empty value takes what the file says away: the default
  holds.

In both, where ``NAME`` is not set but ``NAME_FILE`` is, the value is the content of that file without its closing line
break: so Docker's and systemd's secrets work (``WATCHWORD_REDIS__URL_FILE=/run/secrets/redis_url``).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path as FilePath
from typing import Any

from pydantic import ValidationError

from pipeline.config import CameraConfig, WatchwordConfig
from pipeline.config.environment import apply_environment
from pipeline.config.problems import ConfigProblem, Path, Problem, describe, is_secret, kind_at
from pipeline.config.raw import RawConfig
from pipeline.config.yaml_file import read_yaml
from pipeline.redaction import register_secret

__all__ = ["ConfigProblem", "Problem", "load_config", "register_camera_secrets", "register_config_secrets"]

_SECTIONS = frozenset(WatchwordConfig.model_fields)
_SECRET_PATH = 12
"""Shorter paths are hidden in no line: a word such as /hook would be found in many."""
_USER_INFO = re.compile(r"://(?P<user>[^:]*):(?P<password>.*)@")


def load_config(path: FilePath | str | None, environ: Mapping[str, str] | None = None) -> WatchwordConfig:
    """The configuration in the file at ``path`` (None: defaults), overridden by ``environ`` (default: the process's).

    Raises :class:`ConfigProblem` with everything that is wrong. Every secret found is registered with the redactor,
    also those of a configuration that is refused.
    """
    environ = os.environ if environ is None else environ
    raw = RawConfig()
    if path is not None:
        read_yaml(FilePath(path), environ, raw)
    apply_environment(environ, raw)
    _register_raw_secrets(raw.tree)
    config = _validate(raw)
    if config is None:
        in_order = sorted(raw.problems, key=_line_number)
        raise ConfigProblem(str(path) if path is not None else "configuration", in_order)
    register_config_secrets(config)
    return config


def register_config_secrets(config: WatchwordConfig) -> None:
    """Tells the redactor every secret of ``config``; for configurations that weren't read by :func:`load_config`."""
    hashes = [key.hash for key in config.server.api_keys]
    keys = [*hashes, config.engine.api_key, config.search.embeddings_api_key, config.redis.sentinel_password]
    register_secret(*(key.get_secret_value() for key in keys if key is not None))
    secrets = [secret for hook in config.webhooks for secret in (hook.url, *hook.headers.values())]
    register_secret(*(secret.get_secret_value() for secret in secrets))
    register_secret(config.mqtt.read_password(), *(hook.read_secret() for hook in config.webhooks))
    register_secret(*(_path_in(hook.url.get_secret_value()) for hook in config.webhooks))
    urls = [config.store.url or ""]
    urls += [config.redis.url.get_secret_value()] if config.redis.url else []
    register_secret(*(_password_in(url) for url in urls))
    register_camera_secrets(config.cameras)


def register_camera_secrets(cameras: Iterable[CameraConfig]) -> None:
    """Tells the redactor the passwords of ``cameras``."""
    for camera in cameras:
        register_secret(camera.password.get_secret_value() if camera.password is not None else None)
        register_secret(*(_password_in(url) for url in (camera.url, camera.substream_url or "")))


def _validate(raw: RawConfig) -> WatchwordConfig | None:
    """None when something is wrong; then ``raw.problems`` says what."""
    # "detector:" with nothing below it (all commented out) means the defaults.
    tree = {name: value for name, value in raw.tree.items() if value is not None or name not in _SECTIONS}
    double = _find_double_ids(raw)
    try:
        config = WatchwordConfig.model_validate(tree)
    except ValidationError as error:
        for details in error.errors(include_url=False):
            path: Path = tuple(details["loc"])
            if path or not double:
                origin, where = raw.origins.get(path), raw.where(path)
                text = describe(WatchwordConfig, details, "" if origin == where else origin)
                raw.problems.append(Problem(where, text))
        return None
    return None if raw.problems else config


def _line_number(problem: Problem) -> float:
    """Top to bottom, the environment's after the file's."""
    word, _, number = problem.where.partition(" ")
    return float(number) if word == "line" else float("inf")


def _find_double_ids(raw: RawConfig) -> bool:
    """Like the model's own check, but with the line."""
    cameras = raw.tree.get("cameras")
    seen: dict[str, int] = {}
    found = False
    for index, camera in enumerate(cameras if isinstance(cameras, list) else []):
        name = camera.get("id") if isinstance(camera, dict) else None
        if not isinstance(name, str):
            continue
        if name in seen:
            found = True
            raw.refuse(("cameras", index, "id"), f"{name!r} is the id of cameras[{seen[name]}] already")
        seen.setdefault(name, index)
    return found


def _register_raw_secrets(tree: Any) -> None:
    for path, value in _leaves(tree, ()):
        if is_secret(kind_at(WatchwordConfig, path)) and "://" not in str(value):
            register_secret(str(value))
        register_secret(_password_in(str(value)))


def _leaves(value: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    if isinstance(value, dict):
        for key, child in value.items():
            yield from _leaves(child, (*path, str(key)))
    elif isinstance(value, list):
        for index, child in enumerate(value):
            yield from _leaves(child, (*path, index))
    elif value is not None:
        yield path, value


def _path_in(url: str) -> str | None:
    """Path and query of a webhook's address, which often are its password; None where there is nothing to guess."""
    target = "/" + url.partition("://")[2].partition("/")[2]
    return target if len(target) >= _SECRET_PATH else None


def _password_in(url: str) -> str | None:
    match = _USER_INFO.search(url)
    return match["password"] if match else None
