"""Errors as OpenAI's error object: a message, a type, the wrong field, a code."""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from typing_extensions import TypedDict

from armllm.errors import ArmllmError, BusyError, NoChatTemplateError, RequestError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from starlette.requests import Request
    from starlette.responses import Response

# Their variants have a tag, which pydantic puts after the name.
TAGGED = ("response_format", "format")
# The first that an error is: status and code.
REFUSED = {
    BusyError: (503, "busy"),
    NoChatTemplateError: (400, "no_chat_template"),
    RequestError: (400, "invalid_value"),
}
LONGEST = 1000  # characters of a message: it may quote what a client has sent
_WORD = re.compile(r"[a-z_]+[0-9]?")


class ErrorObject(TypedDict):
    """What went wrong; ``param`` is the field of the request at fault."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(TypedDict):
    """The body of every answer whose status is 400 or above."""

    error: ErrorObject


class ApiError(Exception):
    """An answer with an error status."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message if len(message) <= LONGEST else f"{message[:LONGEST]}…"
        self.status = status
        self.param = param
        self.code = code
        self.headers = headers

    def body(self) -> ErrorBody:
        """The JSON document."""
        kind = "server_error" if self.status >= HTTPStatus.INTERNAL_SERVER_ERROR else "invalid_request_error"
        return {
            "error": {"message": self.message, "type": kind, "param": self.param, "code": self.code},
        }


def as_api_error(error: Exception, fields: Mapping[str, str] | None = None) -> ApiError:
    """Any exception as an answer; ``fields`` are the body's, by the names that the engine calls them."""
    if isinstance(error, ApiError):
        if error.param is not None:
            error.param = (fields or {}).get(error.param, error.param)
        return error
    if isinstance(error, ValidationError):
        return _invalid(error)
    if isinstance(error, RequestError):
        status, code = next(found for kind, found in REFUSED.items() if isinstance(error, kind))
        return ApiError(str(error), status=status, param=_field_in(str(error), fields or {}), code=code)
    if isinstance(error, ArmllmError):  # the engine's, the model's or the template's fault, not the request's
        return ApiError(str(error), status=500, code="engine_error")
    if isinstance(error, HTTPException):
        return ApiError(error.detail, status=error.status_code, headers=error.headers)
    return ApiError(f"internal error: {type(error).__name__}", status=500, code="internal_error")


async def answer_error(request: Request, error: Exception) -> Response:
    """Starlette's handler for every exception; the request's state has the fields of its body."""
    failure = as_api_error(error, getattr(request.state, "fields", None))
    if isinstance(error, HTTPException):
        failure.message = f"{request.method} {request.url.path:.200}: {failure.message}"
    return JSONResponse(failure.body(), status_code=failure.status, headers=failure.headers)


def error_handlers() -> dict[Any, Callable[[Request, Exception], Awaitable[Response]]]:
    """What the application does with exceptions."""
    known = (ApiError, ValidationError, ArmllmError, HTTPException, Exception)
    return dict.fromkeys(known, answer_error)


def _invalid(error: ValidationError) -> ApiError:
    """The first of pydantic's complaints, in its words, with the path of the field."""
    found = error.errors(include_url=False, include_input=False)
    first = found[0]
    kind = first["type"]
    if kind == "unsupported_parameter":
        return ApiError(first["msg"], param=first["ctx"]["param"], code=kind)
    # of a union of types, the branch that got furthest tells most
    if len({one["loc"][:1] for one in found}) == 1:
        first = max(found, key=lambda one: (len(one["loc"]), _indices(one["loc"])))
    path = _path(first["loc"])
    if first["type"] == "extra_forbidden":
        return ApiError(f"unknown parameter: {path}", param=path, code="unknown_parameter")
    if first["type"] == "missing":
        return ApiError(f"{path} is required", param=path, code="missing_required_parameter")
    return ApiError(f"{path or 'the body'}: {first['msg']}", param=path or None, code="invalid_value")


def _indices(location: tuple[int | str, ...]) -> list[int]:
    return [part for part in location if isinstance(part, int)]


def _path(location: tuple[int | str, ...]) -> str:
    """``messages[0].content``; names of types, which pydantic puts in for unions, are left out."""
    path = ""
    for before, part in zip(("", *location), location, strict=False):
        if before in TAGGED:
            continue
        if isinstance(part, int):
            path += f"[{part}]"
        elif _WORD.fullmatch(part) and part not in (
            "str",
            "int",
            "float",
            "bool",
            "list",
            "dict",
            "constrained",
        ):
            path += f".{part}" if path else part
    return path


def _field_in(message: str, fields: Mapping[str, str]) -> str | None:
    """The first field that a message names: the engine's errors name the parameter at fault."""
    return next((fields[word] for word in _WORD.findall(message) if word in fields), None)
