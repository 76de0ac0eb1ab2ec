"""Where Redis is: an address of its own, or the Sentinels that know it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from redis.connection import SSLConnection, parse_url

from pipeline.config.redis import RedisConfig


@dataclass(frozen=True, slots=True)
class RedisAddress:
    """Hold it like a secret: passwords are in it.

    Attributes:
        url: redis://, rediss:// or unix://, with user and password if any. With Sentinels its host and port mean
            nothing, the rest (scheme, user, password, database) is used for whichever server is the master.
        sentinels: (host, port) of each.
        master: the Sentinels' name for the server.
        ca_file, cert_file, key_file: for TLS; None: the system's authorities, no certificate of our own.
    """

    url: str = field(repr=False)
    sentinels: tuple[tuple[str, int], ...] = ()
    master: str = ""
    sentinel_username: str | None = None
    sentinel_password: str | None = field(default=None, repr=False)
    sentinel_tls: bool = False
    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None

    @classmethod
    def of(cls, address: RedisAddress | str) -> RedisAddress:
        """The address itself, or that of a plain URL."""
        return address if isinstance(address, RedisAddress) else cls(address)

    @classmethod
    def configured(cls, config: RedisConfig) -> Self | None:
        """What the configuration says; None when it names no server."""
        if config.url is None and not config.sentinels:
            return None
        password = config.sentinel_password
        return cls(
            url=config.url.get_secret_value() if config.url is not None else "redis://",
            sentinels=tuple(config.sentinel_addresses()),
            master=config.sentinel_master,
            sentinel_username=config.sentinel_username,
            sentinel_password=password.get_secret_value() if password is not None else None,
            sentinel_tls=config.sentinel_tls,
            ca_file=config.tls_ca_file,
            cert_file=config.tls_cert_file,
            key_file=config.tls_key_file,
        )

    def tls_options(self) -> dict[str, Any]:
        """Arguments for a client that is made from the URL."""
        return self._tls() if self.url.startswith("rediss://") else {}

    def master_options(self) -> dict[str, Any]:
        """Arguments for connections to the master, from the URL's user, password, database and scheme."""
        given = dict(parse_url(self.url))  # type: ignore[no-untyped-call]
        secure = given.pop("connection_class", None) is SSLConnection
        for name in ("host", "port", "path"):
            given.pop(name, None)
        return {**given, **({"ssl": True, **self._tls()} if secure else {})}

    def sentinel_options(self, timeout_s: float) -> dict[str, Any]:
        """Arguments for connections to the Sentinels."""
        options: dict[str, Any] = {"socket_timeout": timeout_s, "socket_connect_timeout": timeout_s, "protocol": 2}
        if self.sentinel_password is not None:
            options |= {"username": self.sentinel_username, "password": self.sentinel_password}
        return {**options, **({"ssl": True, **self._tls()} if self.sentinel_tls else {})}

    def _tls(self) -> dict[str, Any]:
        files = {"ssl_ca_certs": self.ca_file, "ssl_certfile": self.cert_file, "ssl_keyfile": self.key_file}
        return {name: str(path) for name, path in files.items() if path is not None}
