"""Errors in the shape of the OpenAI API, for every route alike: ``{"error": {message, type, param, code}}``."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from sqlalchemy.exc import SQLAlchemyError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from api.streaming import CLIENT_GONE, ClientGone
from pipeline.queue.health import QueueUnavailable
from pipeline.reasons import REASON_TEXT
from vlm_engine.errors import EngineDeadError, EngineError, InvalidRequestError, OverloadedError

_log = logging.getLogger(__name__)

INVALID = "invalid_request_error"
SERVER = "server_error"

_CODES = {401: "invalid_api_key", 404: "not_found", 405: "method_not_allowed"}


class ApiError(Exception):
    """An answer other than 2xx, raised anywhere below a route.

    Args:
        status: HTTP status.
        message: for people; never holds a secret or another user's data.
        param: the request field at fault, such as ``messages[0].content[1].image_url``.
        code: a stable word for programs.
        headers: extra response headers.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    @property
    def type(self) -> str:
        """The OpenAI API's word for the kind of error."""
        if self.status == 429:
            return "rate_limit_error"
        return SERVER if self.status >= 500 else INVALID

    def body(self) -> dict[str, Any]:
        """The JSON that goes out, also as a ``data:`` line of a stream that has begun."""
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}

    def response(self) -> JSONResponse:
        return JSONResponse(self.body(), self.status, headers=self.headers)


def invalid(message: str, *, param: str | None = None, code: str | None = None) -> ApiError:
    """400: the request can't be served as asked."""
    return ApiError(400, message, param=param, code=code)


def from_engine(error: EngineError, renames: Mapping[str, str] | None = None) -> ApiError:
    """The engine's refusal as an answer. ``renames`` maps its parameter names to those the client used."""
    if isinstance(error, InvalidRequestError):
        message, param = str(error), error.param
        for ours, theirs in (renames or {}).items():
            message = message.replace(ours, theirs)
            param = theirs if param == ours else param
        return invalid(message, param=param, code=error.code)
    if isinstance(error, OverloadedError):
        # Whole seconds, at least one: Retry-After knows no fractions.
        seconds = max(1, math.ceil(error.retry_after))
        return ApiError(429, str(error), code="engine_overloaded", headers={"Retry-After": str(seconds)})
    if isinstance(error, EngineDeadError):
        return engine_dead(str(error))
    return ApiError(500, str(error), code="request_failed")


def engine_dead(message: str) -> ApiError:
    """503 that asks the official client not to try again: only a restart helps."""
    return ApiError(503, message, code="engine_dead", headers={"X-Should-Retry": "false"})


def describe_validation(errors: Sequence[Mapping[str, Any]]) -> ApiError:
    """Pydantic's complaints as one 400 that names the first field at fault."""
    first = errors[0]
    param = field_path(first["loc"])
    if first["type"] == "extra_forbidden":
        return invalid(f"Unknown parameter: '{param}'.", param=param, code="unknown_parameter")
    if first["type"] == "missing":
        return invalid(f"Missing required parameter: '{param}'.", param=param, code="missing_required_parameter")
    more = f" ({len(errors) - 1} more)" if len(errors) > 1 else ""
    where = f"{param}: " if param else ""
    return invalid(f"{where}{first['msg']}{more}", param=param or None, code="invalid_value")


def field_path(loc: Sequence[str | int]) -> str:
    """``("messages", 0, "~parts", "content")`` -> ``messages[0].content``; names with ``~`` are union tags."""
    path = ""
    for step in loc:
        if isinstance(step, int):
            path += f"[{step}]"
        elif not step.startswith("~"):
            path += f".{step}" if path else step
    return path


def install_handlers(app: FastAPI) -> None:
    """Makes every error of ``app`` leave in the one shape, and validation problems as 400."""

    @app.exception_handler(ApiError)
    async def _api_error(_: Request, error: ApiError) -> JSONResponse:
        return error.response()

    @app.exception_handler(ClientGone)
    @app.exception_handler(ClientDisconnect)
    async def _client_gone(_: Request, __: Exception) -> Response:
        return Response(status_code=CLIENT_GONE)

    @app.exception_handler(QueueUnavailable)
    async def _queue_unavailable(_: Request, error: QueueUnavailable) -> JSONResponse:
        return ApiError(503, REASON_TEXT[error.reason], code=error.reason.value).response()

    @app.exception_handler(SQLAlchemyError)
    async def _store_unavailable(request: Request, error: SQLAlchemyError) -> JSONResponse:
        # The text may hold the database's URL: it goes to the log, which redacts, not to the client.
        _log.error("%s %s: the event store failed: %s", request.method, request.url.path, error)
        return ApiError(503, "The event store does not answer.", code="store_down").response()

    @app.exception_handler(HTTPException)
    async def _http_error(request: Request, error: HTTPException) -> JSONResponse:
        message = f"{request.method} {request.url.path}: {error.detail}"
        code = _CODES.get(error.status_code)
        return ApiError(error.status_code, message, code=code, headers=error.headers).response()

    @app.exception_handler(RequestValidationError)
    async def _invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        # The first step says where the value came from ("query", "path"); clients know the parameter by its name.
        errors = [{**item, "loc": item["loc"][1:]} for item in error.errors()]
        return describe_validation(errors).response()
