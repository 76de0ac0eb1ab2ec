"""The HTTP server: where it listens, who may use it, and how much of it."""

from __future__ import annotations

import ipaddress
import re
from typing import Literal

from pydantic import Field, SecretStr, field_validator, model_validator

from pipeline.config.base import Section

Role = Literal["chat", "viewer", "operator", "admin"]

HASH_FORM = re.compile(r"sha256:[0-9a-f]{64}")


class ApiKeyConfig(Section):
    """One API key, as its hash: the key itself stands nowhere (`watchword keys new` makes one)."""

    hash: SecretStr = Field(title="Hash", description="`sha256:` and 64 hex digits; `watchword keys hash` computes it.")
    name: str = Field("", title="Name", description="Whose key it is, for logs.", max_length=64)
    roles: tuple[Role, ...] = Field(
        ("chat",),
        title="Roles",
        description="chat: the OpenAI endpoint. viewer: reads cameras, events, metrics. operator: both, and changes. "
        "admin: everything.",
        min_length=1,
    )
    requests_per_minute: int | None = Field(
        None, title="Rate", description="Instead of server.requests_per_minute.", ge=1, le=1_000_000
    )
    max_concurrent_requests: int | None = Field(
        None, title="At once", description="Instead of server.max_concurrent_requests.", ge=1
    )

    @field_validator("hash")
    @classmethod
    def _is_a_hash(cls, value: SecretStr) -> SecretStr:
        if not HASH_FORM.fullmatch(value.get_secret_value()):
            raise ValueError(
                "must be 'sha256:' and 64 hex digits, never the key itself; `watchword keys hash` makes it from a key"
            )
        return value


class ServerConfig(Section):
    """The HTTP server. On loopback it is open by default; elsewhere it wants keys."""

    host: str = Field("127.0.0.1", title="Host", description="Address to listen on.")
    port: int = Field(8000, title="Port", description="0 takes a free one.", ge=0, le=65535)
    api_keys: tuple[ApiKeyConfig, ...] = Field(
        (), title="API keys", description="When there are any, requests need one of them (docs/api.md says which)."
    )
    allow_open: bool = Field(
        False, title="Open", description="Listen beyond loopback without API keys: everyone in reach may use it."
    )
    allowed_hosts: tuple[str, ...] = Field(
        (),
        title="Host names",
        description="Names by which the server may be addressed, `*.example.com` for all below; addresses and names "
        "without a dot always may. Empty: with API keys any name, without keys no other (a foreign site could lead its "
        "own name here).",
    )
    public_url: str = Field(
        "",
        title="Public address",
        description="By which others reach this server, such as https://cameras.example.com; for links in messages.",
        pattern=r"^(https?://[^\s/?#@]+(/[^\s?#]*)?)?$",
    )
    max_body_bytes: int = Field(32 * 1024 * 1024, title="Largest body", description="Of a request, in bytes.", ge=1024)
    max_open_body_bytes: int = Field(
        1024 * 1024 * 1024,
        title="Open bodies",
        description="Bytes of the bodies of all requests in work; beyond it 429.",
        ge=1024,
    )
    body_timeout_s: float = Field(60.0, title="Body timeout", description="In which a request's body arrives.", gt=0)
    request_timeout_s: float = Field(
        600.0,
        title="Request deadline",
        description="Longest time for one request; the header X-Request-Timeout may ask for less.",
        gt=0,
    )
    max_open_requests: int = Field(
        1024, title="Open requests", description="POST requests in work at once, of all keys; beyond it 429.", ge=1
    )
    requests_per_minute: int | None = Field(
        None, title="Rate", description="POST requests of one key in any minute; beyond it 429.", ge=1, le=1_000_000
    )
    max_concurrent_requests: int | None = Field(
        None, title="At once", description="POST requests of one key in work at once; beyond it 429.", ge=1
    )
    sse_keep_alive_s: float = Field(
        15.0, title="Keep-alive", description="A stream that is silent so long gets a comment line.", gt=0
    )
    stored_responses: int = Field(
        1000, title="Stored responses", description="Most that /v1/responses keeps; 0 keeps none.", ge=0
    )
    stored_responses_bytes: int = Field(
        256 * 1024 * 1024, title="Stored bytes", description="Most memory of stored responses, in bytes.", ge=0
    )
    stored_responses_age_s: float = Field(
        24 * 3600.0, title="Stored age", description="Responses are forgotten after so many seconds.", gt=0
    )

    @model_validator(mode="after")
    def _not_open_to_the_network(self) -> ServerConfig:
        if (text := self.open_to_network()) is not None:
            raise ValueError(text)
        return self

    def open_to_network(self) -> str | None:
        """What is wrong when the server would listen beyond loopback without keys; None when that is not so."""
        if self.api_keys or self.allow_open or is_loopback(self.host):
            return None
        return (
            f"server.host is {self.host!r} and server.api_keys is empty: everyone who reaches this machine could use "
            "the server. Add a key (`watchword keys new`), or say server.allow_open: true"
        )


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches ``host``."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
