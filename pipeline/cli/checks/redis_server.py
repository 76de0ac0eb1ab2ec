"""Redis: reachable, new enough, and not one that throws our streams away."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pipeline.cli.checks.finding import Finding, ok, problem, warning
from pipeline.config import RedisConfig
from pipeline.redaction import redact

SUBJECT = "redis"
_OLDEST = (7, 0)


def check_redis(config: RedisConfig, timeout: float) -> Iterator[Finding]:
    """Without a URL it is the embedded server that must be there."""
    import redis

    from pipeline.queue.address import RedisAddress
    from pipeline.queue.connect import sync_client

    address = RedisAddress.configured(config)
    if address is None:
        yield _check_embedded()
        return
    url = address.url
    if address.sentinels:
        url = f"master {address.master} of {len(address.sentinels)} Sentinels"
    try:
        client = sync_client(address, timeout)
    except (ValueError, OSError) as error:
        yield problem(SUBJECT, f"redis.url can't be used: {redact(str(error))}")
        return
    try:
        with client:
            client.ping()
            info: Mapping[str, Any] = client.info()
    except redis.AuthenticationError:
        yield problem(SUBJECT, f"{redact(url)} refuses the user name or password of redis.url")
    except (redis.RedisError, OSError) as error:
        yield problem(SUBJECT, f"{redact(url)} can't be reached: {redact(str(error))}")
    else:
        yield from _judge(redact(url), info)


def _judge(shown: str, info: Mapping[str, Any]) -> Iterator[Finding]:
    name = "Valkey" if "valkey_version" in info else "Redis"
    version = str(info.get("valkey_version") or info.get("redis_version", "?"))
    compatible = str(info.get("redis_version", "0"))
    if tuple(int(part) for part in compatible.split(".")[:2] if part.isdecimal()) < _OLDEST:
        yield problem(SUBJECT, f"{shown} is {name} {version}; needed is Redis 7.0 or newer, or Valkey")
    else:
        yield ok(SUBJECT, f"{shown}, {name} {version}")
    policy = str(info.get("maxmemory_policy", "noeviction"))
    limit = int(info.get("maxmemory", 0))
    if policy.startswith("allkeys"):
        yield problem(
            "eviction policy",
            f"maxmemory-policy is {policy}: when memory is short the server deletes whole streams with the crops that "
            "wait in them; set volatile-ttl (CONFIG SET maxmemory-policy volatile-ttl)",
        )
    elif policy == "noeviction" and limit:
        yield ok("eviction policy", f"noeviction, {limit >> 20} MiB; volatile-ttl would give way more softly")
    else:
        yield ok("eviction policy", policy + (f", {limit >> 20} MiB" if limit else ", no memory limit"))
    if not info.get("aof_enabled"):
        yield warning("persistence", "appendonly is off: when Redis restarts, the crops that wait are lost")
    else:
        yield ok("persistence", "appendonly")


def _check_embedded() -> Finding:
    from pipeline.embedded_redis import EmbeddedValkey, EmbeddedValkeyError

    try:
        with EmbeddedValkey():
            return ok(SUBJECT, "no redis.url given; the embedded Valkey starts")
    except EmbeddedValkeyError as error:
        return problem(SUBJECT, str(error))
