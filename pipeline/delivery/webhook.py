"""Webhooks: signed POST requests by the Standard Webhooks specification (standardwebhooks.com)."""

from __future__ import annotations

import asyncio
import json
import ssl
from datetime import UTC, datetime
from secrets import token_hex

import httpx
from standardwebhooks import Webhook

from pipeline.clock import Clock
from pipeline.config.delivery import TlsConfig, WebhookConfig
from pipeline.delivery.message import message_id, test_body
from pipeline.delivery.transport import DeliveryFailed
from pipeline.reasons import Reason
from pipeline.store.deliveries import Delivery

USER_AGENT = "watchword-webhook"
LONGEST_RETRY_AFTER_S = 3600.0
_READ_BYTES = 65536
"""So much of an answer is read, so that its connection can be used again; what it says counts for nothing."""
_BUSY = (408, 425, 429)


def tls_context(config: TlsConfig) -> ssl.SSLContext:
    """The client's side of TLS. Raises OSError, ``ssl.SSLError`` for a CA file that can't be used."""
    context = ssl.create_default_context(cafile=str(config.tls_ca_file) if config.tls_ca_file else None)
    if not config.tls_verify:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


class WebhookTransport:
    """One webhook. No redirect is followed, no proxy and no credentials of the environment are used."""

    ready = True

    def __init__(self, config: WebhookConfig, clock: Clock) -> None:
        """Raises OSError, ``ssl.SSLError`` for ``tls_ca_file``."""
        self._config = config
        self._clock = clock
        secret = config.read_secret()
        self._signer = Webhook(secret) if secret is not None else None
        self._url = config.url.get_secret_value()
        self._client = httpx.AsyncClient(
            verify=tls_context(config) if self._url.startswith("https:") else False,
            follow_redirects=False,
            trust_env=False,
            timeout=config.timeout_s,
            headers={name: value.get_secret_value() for name, value in config.headers.items()},
        )

    async def send(self, delivery: Delivery) -> None:
        await self._post(message_id(delivery.event_id, delivery.sequence), delivery.body)

    async def send_test(self) -> None:
        body = json.dumps(test_body(self._config.name, self._clock.now()))
        await self._post(f"test:{token_hex(8)}", body)

    async def close(self) -> None:
        await self._client.aclose()

    async def _post(self, name: str, body: str) -> None:
        """Raises :class:`DeliveryFailed`. The time limit is for the whole of it, also for a target that trickles."""
        try:
            async with (
                asyncio.timeout(self._config.timeout_s),
                self._client.stream(
                    "POST", self._url, content=body.encode(), headers=self._headers(name, body)
                ) as answer,
            ):
                status, retry_after = answer.status_code, answer.headers.get("retry-after", "")
                await _read_some(answer)
        except (TimeoutError, httpx.TimeoutException):
            raise DeliveryFailed(Reason.TARGET_TIMEOUT, f"within {self._config.timeout_s:g} s") from None
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            # The text of the error may hold the address.
            reason = Reason.TARGET_TLS if _is_tls(error) else Reason.TARGET_UNREACHABLE
            raise DeliveryFailed(reason, type(error).__name__) from None
        _judge(status, retry_after)

    def _headers(self, name: str, body: str) -> dict[str, str]:
        """The time is that of this attempt: receivers refuse what was signed minutes ago."""
        now = datetime.fromtimestamp(int(self._clock.now()), UTC)
        headers = {
            "Content-Type": "application/json",
            "User-Agent": USER_AGENT,
            "webhook-id": name,
            "webhook-timestamp": str(int(now.timestamp())),
        }
        if self._signer is not None:
            headers["webhook-signature"] = self._signer.sign(name, now, body)
        return headers


async def _read_some(answer: httpx.Response) -> None:
    total = 0
    async for piece in answer.aiter_raw():
        total += len(piece)
        if total > _READ_BYTES:
            return


def _judge(status: int, retry_after: str) -> None:
    """2xx is yes. 410 ends the message for good; another 4xx is about this message, all else about the target."""
    if 200 <= status < 300:
        return
    detail = f"HTTP {status}"
    if 300 <= status < 400:
        raise DeliveryFailed(Reason.TARGET_REDIRECT, detail)
    if status == 410:
        raise DeliveryFailed(Reason.TARGET_GONE, detail, for_good=True)
    if 400 <= status < 500 and status not in _BUSY:
        raise DeliveryFailed(Reason.TARGET_STATUS, detail, all_alike=False)
    seconds = min(float(retry_after), LONGEST_RETRY_AFTER_S) if retry_after.isdecimal() else None
    raise DeliveryFailed(Reason.TARGET_STATUS, detail, retry_after=seconds)


def _is_tls(error: BaseException | None) -> bool:
    """Whether TLS is what failed, somewhere down the chain of causes."""
    while error is not None:
        if isinstance(error, ssl.SSLError):
            return True
        error = error.__cause__ or error.__context__
    return False
