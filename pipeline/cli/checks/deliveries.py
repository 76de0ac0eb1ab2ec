"""Webhooks and MQTT: whether they can be reached, without telling them anything; and rules that name nothing."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Iterator
from urllib.parse import urlsplit

from pipeline.cli.checks.finding import Finding, ok, problem, warning
from pipeline.config import MqttConfig, WatchwordConfig, WebhookConfig
from pipeline.reasons import REASON_TEXT, Reason
from pipeline.redaction import redact


def check_deliveries(config: WatchwordConfig, timeout: float) -> Iterator[Finding]:
    """A target that is away is a warning: what is for it waits, and everything else works."""
    yield from check_rules(config)
    for hook in config.webhooks:
        yield check_webhook(hook, timeout)
    if config.mqtt.enabled:
        yield check_mqtt(config.mqtt, timeout)
    if (config.webhooks or config.mqtt.enabled) and not config.server.public_url:
        yield warning("links", "server.public_url is not set, so messages have no links to pictures")


def check_rules(config: WatchwordConfig) -> Iterator[Finding]:
    """Cameras may be added later by the API, so a name that nothing has is a warning."""
    known = {camera.id for camera in config.cameras}
    for rule in config.alerts:
        if missing := [name for name in rule.cameras if name not in known]:
            yield warning(f"alert {rule.name}", f"cameras: {', '.join(missing)} stands in no camera's id here")


def check_webhook(config: WebhookConfig, timeout: float) -> Finding:
    """Connects, and for https greets; no request is sent."""
    subject, shown = f"webhook {config.name}", config.host
    parts = urlsplit(config.url.get_secret_value())
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        with socket.create_connection((parts.hostname or "", port), timeout) as plain:
            if parts.scheme == "https":
                from pipeline.delivery.webhook import tls_context

                with tls_context(config).wrap_socket(plain, server_hostname=parts.hostname):
                    pass
    except ssl.SSLError as error:
        return warning(subject, f"{shown}: {REASON_TEXT[Reason.TARGET_TLS]} ({error.reason or 'TLS'})")
    except OSError as error:
        return warning(subject, f"{shown} can't be reached: {redact(str(error))}")
    signed = "messages are signed" if config.read_secret() is not None else "no secret: messages are not signed"
    return ok(subject, f"{shown} can be reached; {signed}")


def check_mqtt(config: MqttConfig, timeout: float) -> Finding:
    """Connects with user and password, under a name of its own, and says goodbye."""
    import aiomqtt

    from pipeline.delivery.mqtt import failure_of, mqtt_client

    async def connect() -> None:
        async with asyncio.timeout(timeout), mqtt_client(config, f"{config.client_id}-check"):
            return

    try:
        asyncio.run(connect())
    except (aiomqtt.MqttError, OSError) as error:
        failure = failure_of(error)
        report = problem if failure.reason == Reason.TARGET_AUTH else warning
        return report("mqtt", f"{config.address}: {redact(str(failure))}")
    return ok("mqtt", f"{config.address} can be reached")
