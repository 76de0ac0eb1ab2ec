"""``GET /api/cameras`` and the preview pictures. What changes cameras is in :mod:`api.operator.camera_settings`."""

from __future__ import annotations

import time
from typing import Literal

from fastapi import APIRouter, Response
from pydantic import BaseModel, Field

from api.errors import ApiError
from api.operator.parts import CameraPath, hub_of
from api.services import Provided, Services
from pipeline.clock import iso
from pipeline.config import CameraConfig
from pipeline.config.overlay import CameraInForce, CamerasInForce
from pipeline.messages import CameraState, CameraStatus
from pipeline.reasons import REASON_TEXT, Reason

STALE_S = 10.0
"""A status so old means that its ingest is gone: it writes at least every few seconds."""

SILENT_TEXT = "The ingest process that reads this camera gives no sign of life."

Origin = Literal["file", "api"]

router = APIRouter(prefix="/api/cameras", tags=["operator"])


class CameraView(BaseModel):
    """A camera as configured, and as its ingest reports it. Times are ISO 8601 UTC, durations seconds."""

    id: str
    name: str
    enabled: bool
    state: CameraState | None = Field(description="The last one known; null before the first report.")
    stale: bool = Field(description="No ingest has reported this camera lately: all else is as it was then.")
    reason: Reason
    reason_text: str
    since: str | None = Field(None, description="When the state began.")
    updated: str | None = Field(None, description="When ingest reported last.")
    source: str = Field("", description="The URL without credentials.")
    fps: float = 0.0
    frame_age: float | None = Field(None, description="Seconds since the newest frame arrived.")
    width: int = 0
    height: int = 0
    next_retry: str | None = None
    reconnects: int = 0
    frames: int = 0
    detections: int = 0
    tracks: int = Field(0, description="People in view.")
    crops: int = 0
    detector_ms: float = 0.0
    drops: dict[str, int] = Field(default_factory=dict)
    decoder: str = Field("", description="cpu, or the device that decodes the stream.")
    next_change: str | None = Field(None, description="When its schedule switches it on or off next.")
    fps_in: float = Field(0.0, description="Pictures a second that the camera sends.")
    fps_processed: float = Field(0.0, description="Pictures a second that the detector looked at.")
    origin: Origin | None = Field(
        None, description="file: in the configuration file. api: added here. null: in another ingest's file."
    )
    changed: list[str] = Field(default_factory=list, description="Settings that the API set.")
    problem: str | None = Field(None, description="Why what the API changed is not in force.")


class CameraList(BaseModel):
    cameras: list[CameraView]
    removed: list[str] = Field(
        default_factory=list, description="Cameras of the configuration file that the API removed."
    )
    problem: str | None = Field(
        None, description="What is wrong with the configuration file since its last good version."
    )


@router.get("", summary="All cameras and how they are")
async def list_cameras(services: Provided) -> CameraList:
    statuses = {status.camera: status for status in await hub_of(services).statuses()}
    now = time.time()
    force = in_force_of(services)
    views = [
        view_of(camera, statuses.pop(camera.config.id, None), now, force.problems.get(camera.config.id))
        for camera in force.cameras
    ]
    # Others that an ingest with a configuration of its own reports.
    views += [reported(status, None, now) for name, status in statuses.items() if name not in force.removed]
    problem = services.cameras.problem if services.cameras is not None else None
    return CameraList(cameras=views, removed=list(force.removed), problem=problem)


def in_force_of(services: Services) -> CamerasInForce:
    """The cameras as this server knows them."""
    if services.cameras is not None:
        return services.cameras.now
    return CamerasInForce(tuple(CameraInForce(camera, in_file=True) for camera in services.config.cameras))


def view_of(camera: CameraInForce, status: CameraStatus | None, now: float, problem: str | None) -> CameraView:
    """A camera that this server knows, with what ingest says about it."""
    config = camera.config
    view = unreported(config) if status is None else reported(status, config, now)
    origin: Origin = "file" if camera.in_file else "api"
    return view.model_copy(update={"origin": origin, "changed": list(camera.changed), "problem": problem})


@router.get("/{camera}/preview.jpg", summary="The newest picture, with boxes", response_class=Response)
async def preview(camera: CameraPath, services: Provided) -> Response:
    """Says that somebody watches, so that ingest goes on making pictures. 204 while there is none."""
    hub = hub_of(services)
    await _require_known(camera, services)
    await hub.watch(camera)
    picture = await hub.preview(camera)
    headers = {"Cache-Control": "no-store"}
    if picture is None:
        return Response(status_code=204, headers=headers)
    return Response(picture, media_type="image/jpeg", headers=headers)


async def _require_known(camera: str, services: Services) -> None:
    if in_force_of(services).find(camera) is not None:
        return
    if any(status.camera == camera for status in await hub_of(services).statuses()):
        return
    raise ApiError(404, f"There is no camera '{camera}'.", code="camera_not_found")


def unreported(config: CameraConfig) -> CameraView:
    """A camera that no ingest has reported within the status TTL."""
    return CameraView(
        id=config.id,
        name=config.title,
        enabled=config.enabled,
        state=None if config.enabled else CameraState.DISABLED,
        stale=config.enabled,
        reason=Reason.NONE if config.enabled else Reason.SWITCHED_OFF,
        reason_text=SILENT_TEXT if config.enabled else REASON_TEXT[Reason.SWITCHED_OFF],
    )


def reported(status: CameraStatus, config: CameraConfig | None, now: float) -> CameraView:
    """A camera as reported, under its configured name when it is ours. ``now`` in seconds since the epoch."""
    elapsed = max(0.0, now - status.updated)
    stale = elapsed > STALE_S and status.state is not CameraState.DISABLED
    return CameraView(
        id=status.camera,
        name=config.title if config else status.name or status.camera,
        enabled=config.enabled if config else status.state is not CameraState.DISABLED,
        state=status.state,
        stale=stale,
        reason=status.reason,
        reason_text=SILENT_TEXT if stale else REASON_TEXT[status.reason],
        since=iso(status.since),
        updated=iso(status.updated),
        source=status.source,
        fps=status.fps,
        frame_age=None if status.frame_age is None else status.frame_age + elapsed,
        width=status.width,
        height=status.height,
        next_retry=None if status.next_retry is None else iso(status.next_retry),
        reconnects=status.reconnects,
        frames=status.frames,
        detections=status.detections,
        tracks=status.tracks,
        crops=status.crops,
        detector_ms=status.detector_ms,
        drops=dict(status.drops),
        decoder=status.decoder,
        next_change=None if status.next_change is None else iso(status.next_change),
        fps_in=status.fps_in,
        fps_processed=status.fps_processed,
    )
