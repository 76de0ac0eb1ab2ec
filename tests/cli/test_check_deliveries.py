"""`watchword check` on webhooks and MQTT: reachable or not, and nothing is told."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pipeline.cli.checks.deliveries import check_deliveries, check_mqtt, check_webhook
from pipeline.cli.checks.finding import Level
from pipeline.config import MqttConfig, WatchwordConfig, WebhookConfig
from tests.pipeline.mqtt_broker import free_port, mqtt_broker
from tests.pipeline.webhook_target import webhook_target


def test_a_webhook_is_connected_to_and_sent_nothing() -> None:
    with webhook_target() as target:
        finding = check_webhook(WebhookConfig(name="hook", url=target.url), 5)
        assert finding.level is Level.OK and "not signed" in finding.text
        assert target.received == []
        assert "a-long-secret-path" not in finding.text
        tls = check_webhook(WebhookConfig(name="hook", url=target.url.replace("http:", "https:")), 5)
        assert tls.level is Level.WARNING and "does not speak TLS" in tls.text
    away = check_webhook(WebhookConfig(name="hook", url=f"http://127.0.0.1:{free_port()}/"), 5)
    assert away.level is Level.WARNING and "can't be reached" in away.text


@pytest.fixture
def broker_port() -> Iterator[int]:
    with mqtt_broker() as port:
        yield port


def test_a_broker_is_connected_to(broker_port: int) -> None:
    assert check_mqtt(MqttConfig(host="127.0.0.1", port=broker_port), 10).level is Level.OK
    away = check_mqtt(MqttConfig(host="127.0.0.1", port=free_port()), 10)
    assert away.level is Level.WARNING and "can't be reached" in away.text


def test_rules_that_name_unknown_cameras_and_missing_links_are_warnings() -> None:
    config = WatchwordConfig.model_validate(
        {
            "cameras": [{"id": "front", "url": "rtsp://10.0.0.2/"}],
            "alerts": [{"name": "a", "cameras": ["front", "frnt"]}],
            "webhooks": [{"name": "hook", "url": f"http://127.0.0.1:{free_port()}/"}],
        }
    )
    found = {finding.subject: finding for finding in check_deliveries(config, 5)}
    assert found["alert a"].level is Level.WARNING and "frnt" in found["alert a"].text
    assert "public_url" in found["links"].text
