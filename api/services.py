"""What the HTTP side works with, handed in by whoever composes the process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from fastapi import Depends, Request

if TYPE_CHECKING:
    from pipeline.camera_registry import CameraRegistry
    from pipeline.config import WatchwordConfig
    from pipeline.delivery.deliverer import Deliverer
    from pipeline.describer_metrics import DescriberMetrics
    from pipeline.embedder import Embedder
    from pipeline.image_ladder import ImageLadder
    from pipeline.queue.hub import CameraHub
    from pipeline.store import EventStore
    from vlm_engine.engine import VLMEngine


@dataclass(frozen=True, slots=True)
class Services:
    """The parts behind the API; a part that this process does without is None.

    Attributes:
        config: the whole configuration.
        engine: the in-process engine, in any state; None when descriptions come from another server.
        store: events and crops; None without cameras.
        hub: cameras, queue and event changes in Redis; None without cameras.
        model_name: the one name that requests may give as ``model``.
        cameras: which cameras there are, and what changes them; None without cameras.
        describing: what the describer counts and times; None where there is none.
        embedder: search by meaning; None where it isn't configured.
        ladder: bounds crops' image tokens while their queue is too old; None where there is none.
        deliverer: tells webhooks and MQTT of events; None where no target is configured.
    """

    config: WatchwordConfig
    engine: VLMEngine | None
    store: EventStore | None
    hub: CameraHub | None
    model_name: str
    ladder: ImageLadder | None = None
    cameras: CameraRegistry | None = None
    describing: DescriberMetrics | None = None
    embedder: Embedder | None = None
    deliverer: Deliverer | None = None


async def services_of(request: Request) -> Services:
    """The services of the app that serves this request."""
    services: Services = request.app.state.services
    return services


Provided = Annotated[Services, Depends(services_of)]
"""A route's parameter of this type receives the app's services."""
