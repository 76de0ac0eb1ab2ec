"""``watchword cameras list | discover``: the cameras of a running server, and those that answer in the network."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import httpx
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pipeline.cli.errors import UsageProblem, fail
from pipeline.cli.trace import reason_in

NEEDED = "discovery needs the package onvif-python: pip install 'watchword[onvif]'"
_NAMES = ("name", "hardware", "location")
_MOST = 500
"""Of answers that are shown: anything in the network can answer, as often as it likes."""


@dataclass(frozen=True, slots=True)
class Found:
    """A device that answered.

    Attributes:
        service: the address of its ONVIF service, which can tell the streams' addresses.
    """

    host: str
    name: str
    hardware: str
    location: str
    service: str


def run_list(url: str, api_key: str | None) -> int:
    """A line for each camera, as the server's page shows it."""
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    try:
        answer = httpx.get(f"{url.rstrip('/')}/api/cameras", headers=headers, timeout=30)
        answer.raise_for_status()
        listed = answer.json()
    except httpx.HTTPStatusError as error:
        fail(f"{url} answered {error.response.status_code}: {reason_in(error.response)}")
    except (httpx.HTTPError, ValueError) as error:
        fail(f"{url} can't be reached: {type(error).__name__}")
    rows = [_row(camera) for camera in listed["cameras"]]
    _print(("id", "name", "state", "fps", "from", "source", ""), rows)
    if listed["removed"]:
        print(f"removed over the API: {', '.join(listed['removed'])}", file=sys.stderr)
    if listed["problem"]:
        print(f"the configuration file is not taken over: {listed['problem']}", file=sys.stderr)
    return 0


def run_discover(timeout: float, interface: str | None) -> int:
    """A line for each device that answers an ONVIF probe (WS-Discovery) within ``timeout`` seconds.

    Raises UsageProblem when the library is not installed, or the network can't be asked.
    """
    found = discover(timeout, interface)
    _print(("address", "name", "hardware", "location", "ONVIF service"), [_cells(camera) for camera in found])
    told = f"{len(found)} answered" if found else "nothing answered"
    print(
        f"{told}; a probe goes to the network of one address (--interface), not across routers. "
        "`watchword check` tries a stream once it is in the configuration.",
        file=sys.stderr,
    )
    return 0


def discover(timeout: float, interface: str | None = None) -> list[Found]:
    """Devices that answer, by address. What they say is untrusted text."""
    try:
        from onvif import ONVIFDiscovery
    except ImportError:
        raise UsageProblem(NEEDED) from None
    logging.getLogger("onvif").setLevel(logging.CRITICAL)  # what it says of each device is in the table, or not there
    try:
        devices = ONVIFDiscovery(timeout=max(1, round(timeout)), interface=interface).discover()
    except Exception as error:  # a library over what strangers send; it names few of its errors
        raise UsageProblem(f"the network can't be searched: {type(error).__name__}") from None
    by_address = {device.get("epr") or device.get("host"): device for device in devices[:_MOST]}
    return sorted((_found(device) for device in by_address.values()), key=lambda camera: camera.host)


def _found(device: Mapping[str, Any]) -> Found:
    scopes: dict[str, str] = {}
    for scope in device.get("scopes", ()):
        # onvif://www.onvif.org/name/Front%20door
        kind, _, value = str(scope).partition("://www.onvif.org/")[2].partition("/")
        if kind in _NAMES and kind not in scopes:
            scopes[kind] = unquote(value, errors="replace")
    services = [str(address) for address in device.get("xaddrs", ())]
    name, hardware, location = (_printable(scopes.get(kind, "")) for kind in _NAMES)
    return Found(_printable(str(device.get("host"))), name, hardware, location, _printable(" ".join(services[:1])))


def _printable(text: str) -> str:
    """Without control characters, which a terminal would obey; at most 120 characters."""
    return "".join(c if c.isprintable() else "?" for c in text[:120])


def _cells(camera: Found) -> tuple[str, ...]:
    return (camera.host, camera.name, camera.hardware, camera.location, camera.service)


def _row(camera: Mapping[str, Any]) -> tuple[str, ...]:
    state = "no report" if camera["stale"] else str(camera["state"])
    origin = camera["origin"] or "another ingest"
    if origin == "file" and camera["changed"]:
        origin = f"file, changed: {', '.join(camera['changed'])}"
    texts = (camera["id"], camera["name"], state, f"{camera['fps']:.1f}", origin, camera["source"])
    return (*texts, camera["problem"] or camera["reason_text"])


def _print(heads: Iterable[str], rows: Iterable[tuple[str, ...]]) -> None:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for head in heads:
        table.add_column(head, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    Console().print(table)
