"""What operator routes need from their services, and the answer when a part is not there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from fastapi import Header, Path

from api.errors import ApiError
from api.services import Services
from pipeline.reasons import REASON_TEXT, Reason

if TYPE_CHECKING:
    from pipeline.camera_registry import CameraRegistry
    from pipeline.queue.hub import CameraHub
    from pipeline.store import EventStore

CameraPath = Annotated[str, Path(pattern=r"^[a-z0-9_-]{1,64}$", description="A camera's id.")]
EventPath = Annotated[str, Path(pattern=r"^[A-Za-z0-9_.-]{1,200}$", description="An event's id.")]


def refuse_cross_site(sec_fetch_site: Annotated[str | None, Header(include_in_schema=False)] = None) -> None:
    """A server without keys is open to whoever reaches it, but not to other sites' pages in a visitor's browser."""
    if sec_fetch_site == "cross-site":
        raise ApiError(403, "Pages of other sites can't ask for this.", code="cross_site")


def hub_of(services: Services) -> CameraHub:
    """The hub, or 404: a server without cameras has no such things."""
    if services.hub is None:
        raise _no_cameras()
    return services.hub


def store_of(services: Services) -> EventStore:
    """The store, or 404."""
    if services.store is None:
        raise _no_cameras()
    return services.store


def reason_text(reason: str) -> str:
    """The reason in words; a newer writer's reason, which we don't know, as it is."""
    try:
        return REASON_TEXT[Reason(reason)]
    except ValueError:
        return reason


def registry_of(services: Services) -> CameraRegistry:
    """The cameras and what changes them, or 404."""
    if services.cameras is None:
        raise _no_cameras()
    return services.cameras


def _no_cameras() -> ApiError:
    return ApiError(404, "This server was started without cameras.", code="no_cameras")
