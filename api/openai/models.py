"""``GET /v1/models`` and ``GET /v1/models/{id}``."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from openai.types import Model

from api.openai.submission import check_model, ready_engine
from api.services import Provided, Services

router = APIRouter(prefix="/v1", tags=["openai"])


@router.get("/models", summary="List the served model")
async def list_models(request: Request, services: Provided) -> dict[str, Any]:
    return {"object": "list", "data": [_model(request, services)]}


# Hub ids hold a slash, which clients send quoted or plain.
@router.get("/models/{model_id:path}", summary="Describe the served model")
async def retrieve_model(model_id: str, request: Request, services: Provided) -> dict[str, Any]:
    check_model(model_id, services)
    return _model(request, services)


def _model(request: Request, services: Services) -> dict[str, Any]:
    engine = ready_engine(services)
    model = Model(
        id=services.model_name,
        object="model",
        created=request.app.state.started,
        owned_by="watchword",
        **{"max_model_len": engine.max_model_len},  # vLLM's extra field, which its clients read
    )
    return model.model_dump(exclude_unset=True)
