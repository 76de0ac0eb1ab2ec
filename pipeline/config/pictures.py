"""Pictures in requests that are given by address: off unless hosts or a folder are named."""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator

from pipeline.config.base import Section

_LABEL = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_HOST = re.compile(rf"(\*|(\*\.)?{_LABEL}(\.{_LABEL})*|\[[0-9a-f:.]+\])(:[0-9]{{1,5}})?")


class PicturesConfig(Section):
    """Pictures in requests. By default none is fetched: they come as data URLs."""

    max_per_request: int = Field(64, title="Pictures", description="Most pictures in one request.", ge=1, le=10_000)
    url_hosts: tuple[str, ...] = Field(
        (),
        title="Hosts",
        description="Where pictures may be fetched from by http(s): `images.example.com`, `*.example.com` for every "
        "name below, `*` for any; with `:port` for another port than the scheme's own. Empty: nothing is fetched.",
    )
    url_schemes: tuple[Literal["https", "http"], ...] = Field(
        ("https",), title="Schemes", description="Of those URLs.", min_length=1
    )
    url_networks: tuple[str, ...] = Field(
        (),
        title="Networks",
        description="Private networks such as `10.1.2.0/24` that pictures may come from nevertheless; all others, "
        "loopback and link-local addresses are refused. Cloud metadata addresses always are.",
    )
    url_max_bytes: int = Field(
        16 * 1024 * 1024, title="Largest file", description="Bytes read of one picture.", ge=1024
    )
    url_timeout_s: float = Field(
        10.0, title="Timeout", description="Seconds for one picture, from looking up its host to the last byte.", gt=0
    )
    url_max_redirects: int = Field(
        3, title="Redirects", description="Followed on the same host; to another never.", ge=0, le=20
    )
    url_concurrency: int = Field(
        16, title="At once", description="Pictures fetched at once, of all requests.", ge=1, le=1024
    )
    folder: Path | None = Field(
        None, title="Folder", description="file: URLs may name pictures below it. Empty: no file: URLs."
    )

    @field_validator("url_hosts")
    @classmethod
    def _are_hosts(cls, hosts: tuple[str, ...]) -> tuple[str, ...]:
        for host in hosts:
            if not _HOST.fullmatch(host):
                raise ValueError(
                    f"{host!r} is no host: give a name in lower case (images.example.com), *.example.com, an address "
                    "(IPv6 in brackets) or *, each with or without :port, and no scheme or path"
                )
        return hosts

    @field_validator("url_networks")
    @classmethod
    def _are_networks(cls, networks: tuple[str, ...]) -> tuple[str, ...]:
        for network in networks:
            try:
                ipaddress.ip_network(network)
            except ValueError as error:
                raise ValueError(f"{network!r} is no network: {error}") from None
        return networks
