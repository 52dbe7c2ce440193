"""Files of requests in OpenAI's batch format: each line is sent to the application as a client would.

https://platform.openai.com/docs/api-reference/batch/request-input
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import tempfile
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

from armllm.api.async_llm import AsyncLLM
from armllm.errors import RequestError
from armllm.server.app import create_app
from armllm.server.openapi import ENDPOINTS
from armllm.server.service import ServerOptions, Service, new_id

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from starlette.types import ASGIApp, Message

PATHS = tuple(path for one in ENDPOINTS if one.method == "POST" for path in one.paths)
AT_ONCE = 256  # requests within the application; the engine has its own queue
SECONDS = 600.0  # for a file that is downloaded or uploaded


def run_batch(
    model: str,
    engine_options: dict[str, Any],
    options: ServerOptions,
    *,
    source: str,
    target: str,
    folder: str | None,
    metrics: tuple[str, int] | None,
) -> tuple[int, int]:
    """Answer the requests of a file, in its order; return how many were answered and how many failed.

    ``source`` and ``target`` are paths or http URLs; before an upload answers are collected in ``folder``.
    ``metrics``: address and port of Prometheus's metrics. RequestError says what is wrong with the files.
    """
    requests = [_parse(line, number) for number, line in enumerate(_read(source), 1) if line.strip()]
    if not requests:
        raise RequestError(f"--input-file {source}: there is no request in it")
    with _written(target, folder) as path:
        if path.exists() and Path(source).exists() and path.samefile(source):
            raise RequestError(f"--output-file {target}: it is the input file, whose requests would be lost")
        engine = AsyncLLM(model, **engine_options)
        try:
            service = Service(engine, options)
            if metrics is not None:
                from prometheus_client import start_http_server  # noqa: PLC0415 - few want them

                start_http_server(metrics[1], metrics[0], service.metrics.registry)
            with _named(path), path.open("w", encoding="utf-8") as file:
                failed = asyncio.run(_answer_all(create_app(service), requests, file.write))
        finally:
            engine.shutdown()
    return len(requests) - failed, failed


def _read(source: str) -> list[str]:
    try:
        if source.startswith(("http://", "https://")):
            with urllib.request.urlopen(source, timeout=SECONDS) as answer:  # noqa: S310 - of these two schemes
                content: bytes = answer.read()
        else:
            content = Path(source).read_bytes()
        return content.decode().split("\n")
    except (OSError, ValueError) as error:
        raise RequestError(f"--input-file {source}: {getattr(error, 'strerror', None) or error}") from None


@contextlib.contextmanager
def _written(target: str, folder: str | None) -> Any:
    """A path to write to: the target, or a file that is uploaded at the end."""
    if not target.startswith(("http://", "https://")):
        path = Path(target)
        try:
            path.touch()
        except OSError as error:
            raise RequestError(f"--output-file {target}: {error.strerror}") from None
        yield path
        return
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        path = Path(temporary) / "answers.jsonl"
        yield path
        request = urllib.request.Request(target, data=path.read_bytes(), method="PUT")  # noqa: S310 - see above
        try:
            with urllib.request.urlopen(request, timeout=SECONDS):  # noqa: S310 - see above
                pass
        except (OSError, ValueError) as error:
            raise RequestError(f"--output-file {target}: {error}") from None


@contextlib.contextmanager
def _named(path: Path) -> Iterator[None]:
    """Let what the system says of a full disk name the file."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


def _parse(line: str, number: int) -> dict[str, Any]:
    """One request; RequestError names the line that is none."""
    try:
        request = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"--input-file, line {number}: not JSON: {error}") from None
    names = ("custom_id", "method", "url", "body")
    if not isinstance(request, dict) or any(name not in request for name in names):
        raise RequestError(f"--input-file, line {number}: a request needs {', '.join(names)}")
    if not isinstance(request["custom_id"], str) or not isinstance(request["body"], dict):
        raise RequestError(f"--input-file, line {number}: custom_id must be a text, and body an object")
    return request


async def _answer_all(app: ASGIApp, requests: Iterable[dict[str, Any]], write: Callable[[str], Any]) -> int:
    """Send all requests; write the answers in their order as they come. Return how many failed."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(request: dict[str, Any]) -> dict[str, Any]:
        async with gate:
            return await _answer(app, request)

    failed = 0
    for task in [asyncio.ensure_future(one(request)) for request in requests]:
        document = await task
        failed += document["error"] is not None
        write(json.dumps(document) + "\n")
    return failed


async def _answer(app: ASGIApp, request: dict[str, Any]) -> dict[str, Any]:
    """The line of one answer."""
    path = request["url"]
    if request["method"] != "POST" or path not in PATHS:
        status, body = 400, _error("url", f"url must be one of {', '.join(PATHS)} with method POST")
    elif request["body"].get("stream"):
        status, body = 400, _error("stream", "stream must be false in a batch")
    elif str(request["body"].get("encoding_format")).startswith("bytes"):
        status, body = (
            400,
            _error("encoding_format", "encoding_format must be float or base64 in a batch: answers are JSON"),
        )
    else:
        status, body = await _post(app, path, request["body"])
    return {
        "id": new_id("batch_req_"),
        "custom_id": request["custom_id"],
        "response": {"status_code": status, "request_id": new_id("req_"), "body": body},
        "error": body.get("error", body) if status != 200 else None,
    }


def _error(param: str, message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": "invalid_request_error", "param": param, "code": None}}


async def _post(app: ASGIApp, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """Status and JSON document of an answer of the application."""
    try:
        document = json.dumps(body).encode()
    except RecursionError:  # there is less room on the stack than when it was read
        return 400, _error("body", "the body is nested too deeply")
    headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
    headers.append((b"content-length", str(len(document)).encode()))
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": headers,
        "client": None,
        "server": ("localhost", 80),
    }
    pending: list[Message] = [{"type": "http.request", "body": document, "more_body": False}]
    sent: list[Message] = []

    async def receive() -> Message:
        if pending:
            return pending.pop()
        await asyncio.Event().wait()  # the client stays
        raise AssertionError

    async def send(message: Message) -> None:
        sent.append(message)

    try:
        await app(scope, receive, send)
    except Exception:
        if not sent:  # else it is the answer to an internal error, which Starlette raises again
            raise
    status: int = next(message["status"] for message in sent if message["type"] == "http.response.start")
    content = b"".join(
        message.get("body", b"") for message in sent if message["type"] == "http.response.body"
    )
    answer: dict[str, Any] = json.loads(content)
    return status, answer
