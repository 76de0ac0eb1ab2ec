"""Adding, changing and removing cameras while everything runs."""

from __future__ import annotations

import time
from collections.abc import Awaitable
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Body, Depends, Response
from pydantic import Field
from pydantic.json_schema import models_json_schema

from api.errors import ApiError, invalid
from api.operator.cameras import CameraView, in_force_of, view_of
from api.operator.parts import CameraPath, hub_of, refuse_cross_site, registry_of
from api.services import Provided, Services
from pipeline.camera_registry import CameraConflict, InvalidSettings, UnknownCamera, shown_settings
from pipeline.config import CameraConfig
from pipeline.config.overlay import CameraInForce, plain_settings
from pipeline.queue.health import QueueUnavailable

T = TypeVar("T")

router = APIRouter(prefix="/api/cameras", tags=["operator"], dependencies=[Depends(refuse_cross_site)])


class CameraDetail(CameraView):
    """A camera with its settings."""

    settings: dict[str, Any] = Field(
        description="What was set, under the keys of the configuration; URLs without credentials, never a password."
    )
    password_set: bool = Field(description="Whether a password goes with the user name.")


_SCHEMA = models_json_schema([(CameraConfig, "validation")], ref_template="#/components/schemas/{model}")[1]["$defs"]
SCHEMAS: dict[str, Any] = dict(_SCHEMA)
"""The settings' schemas, for the API's description."""


def _body(schema: dict[str, Any]) -> dict[str, Any]:
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


_REFERENCE = {"$ref": "#/components/schemas/CameraConfig"}
_SOME = {"type": "object", "description": "Any of CameraConfig's keys but id; those that are left out stay."}
Settings = Annotated[dict[str, Any], Body(description="Settings as in the configuration file.")]
_ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"description": "A setting is unknown or out of bounds; `param` is its path."},
    404: {"description": "There is no such camera here."},
    409: {"description": "It doesn't go with the cameras as they are."},
}


@router.get("/{camera}", summary="One camera with its settings", responses={404: _ERRORS[404]})
async def show_camera(camera: CameraPath, services: Provided) -> CameraDetail:
    found = in_force_of(services).find(camera)
    if found is None:
        raise _unknown(camera)
    return await _detail(found, services)


@router.post("", summary="Add a camera", status_code=201, responses={**_ERRORS}, openapi_extra=_body(_REFERENCE))
async def add_camera(settings: Settings, services: Provided, response: Response) -> CameraDetail:
    """Its settings, `id` and `url` at least. It need not answer yet: ingest goes on trying."""
    found = await _asked(registry_of(services).add(settings), str(settings.get("id")))
    response.headers["Location"] = f"/api/cameras/{found.config.id}"
    return await _detail(found, services)


@router.put("/{camera}", summary="Replace a camera's settings", responses=_ERRORS, openapi_extra=_body(_REFERENCE))
async def replace_camera(camera: CameraPath, settings: Settings, services: Provided) -> CameraDetail:
    """What isn't given is as if it had never been set. Only the password stays while the user name does."""
    _refuse_other_id(camera, settings)
    return await _detail(await _asked(registry_of(services).replace(camera, settings), camera), services)


@router.patch("/{camera}", summary="Change some of a camera's settings", responses=_ERRORS, openapi_extra=_body(_SOME))
async def change_camera(camera: CameraPath, settings: Settings, services: Provided) -> CameraDetail:
    """`{"enabled": false}` switches it off. What isn't given stays as it is; null is a value like others."""
    _refuse_other_id(camera, settings)
    return await _detail(await _asked(registry_of(services).change(camera, settings), camera), services)


@router.delete("/{camera}", summary="Remove a camera", status_code=204, responses={404: _ERRORS[404]})
async def remove_camera(camera: CameraPath, services: Provided) -> Response:
    """Its events stay. One of the configuration file stays away until `reset`, or until it is added again."""
    await _asked(registry_of(services).remove(camera), camera)
    return Response(status_code=204)


@router.post("/{camera}/reset", summary="Forget what was changed here", responses=_ERRORS)
async def reset_camera(camera: CameraPath, services: Provided) -> CameraDetail:
    """The configuration file's settings hold again."""
    return await _detail(await _asked(registry_of(services).reset(camera), camera), services)


async def _asked(work: Awaitable[T], camera: str) -> T:
    """The registry's refusals as answers."""
    try:
        return await work
    except UnknownCamera:
        raise _unknown(camera) from None
    except CameraConflict as error:
        raise ApiError(409, str(error), code="camera_conflict") from None
    except InvalidSettings as error:
        path, text = error.problems[0]
        more = f" ({len(error.problems) - 1} more)" if len(error.problems) > 1 else ""
        raise invalid(text + more, param=path or None, code="invalid_camera") from None


async def _detail(camera: CameraInForce, services: Services) -> CameraDetail:
    config = camera.config
    try:
        statuses = await hub_of(services).statuses()
    except QueueUnavailable:
        statuses = []  # what was asked is done all the same
    status = next((status for status in statuses if status.camera == config.id), None)
    problem = in_force_of(services).problems.get(config.id)
    view = view_of(camera, status, time.time(), problem)
    settings = shown_settings(config)
    return CameraDetail(**view.model_dump(), settings=settings, password_set=_has_password(config))


def _has_password(config: CameraConfig) -> bool:
    plain = plain_settings(config)
    return bool(plain.get("password") or plain.get("password_file"))


def _refuse_other_id(camera: str, settings: dict[str, Any]) -> None:
    if settings.get("id", camera) != camera:
        raise invalid(f"id: the path says '{camera}'; an id can't be changed", param="id", code="invalid_camera")


def _unknown(camera: str) -> ApiError:
    text = f"There is no camera '{camera}' in this server's configuration, and none was added."
    return ApiError(404, text, code="camera_not_found")
