"""A load generator for servers with OpenAI's API."""

from __future__ import annotations

import asyncio
import json
import random
import re
import time
from typing import TYPE_CHECKING, Any

import httpx2

from armllm.bench.summary import Outcome
from armllm.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from armllm.bench.dataset import BenchRequest

TIMEOUT = 6 * 3600.0  # an answer may wait behind all others


class Target:
    """A server, a model of it, and how it is asked."""

    def __init__(
        self, base_url: str, endpoint: str, *, model: str, api_key: str | None, ignore_eos: bool
    ) -> None:
        self.url = base_url.rstrip("/") + endpoint
        self.model = model
        self.headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        self._extra = {"ignore_eos": True} if ignore_eos else {}

    def body(self, request: BenchRequest, text: str | None) -> dict[str, Any]:
        """The JSON of a request; ``text`` stands for its tokens where the endpoint takes no token ids."""
        prompt: dict[str, Any] = {"prompt": request.prompt_token_ids if text is None else text}
        if self.url.endswith("/chat/completions"):
            prompt = {"messages": [{"role": "user", "content": text}]}
        return {
            "model": self.model,
            **prompt,
            "max_tokens": request.output_len,
            "temperature": 0.0,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self._extra,
        }


async def run(
    target: Target,
    bodies: Sequence[dict[str, Any]],
    prompt_lengths: Sequence[int],
    *,
    rate: float,
    burstiness: float,
    max_concurrency: int | None,
    seed: int,
    progress: Callable[[int], None],
) -> tuple[list[Outcome], float]:
    """Send all requests; return what came of each, in order, and the seconds it took.

    They start ``rate`` per second on average, with gamma-distributed gaps (``burstiness`` 1 is a Poisson
    process, less comes in bursts), and at most ``max_concurrency`` run at a time.
    """
    if not rate > 0:
        raise RequestError(f"--request-rate must be above 0, not {rate}")
    if not burstiness > 0:
        raise RequestError(f"--burstiness must be above 0, not {burstiness}")
    rng = random.Random(seed)  # noqa: S311 - test data
    gate = asyncio.Semaphore(max_concurrency or len(bodies))
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
    done = 0

    async def one(client: httpx2.AsyncClient, body: dict[str, Any], length: int) -> Outcome:
        nonlocal done
        async with gate:
            outcome = await ask(client, target, body, length)
        done += 1
        progress(done)
        return outcome

    async with httpx2.AsyncClient(limits=limits, timeout=TIMEOUT, headers=target.headers) as client:
        started = due = time.perf_counter()
        tasks = []
        for body, length in zip(bodies, prompt_lengths, strict=True):
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            tasks.append(asyncio.ensure_future(one(client, body, length)))
            if rate != float("inf"):
                due += rng.gammavariate(burstiness, 1 / (rate * burstiness))
        outcomes = await asyncio.gather(*tasks)
        return outcomes, time.perf_counter() - started


async def ask(
    client: httpx2.AsyncClient, target: Target, body: dict[str, Any], prompt_length: int
) -> Outcome:
    """One streamed request."""
    started = time.perf_counter()
    outcome = Outcome(prompt_length, started=started)
    last, counted = started, None
    try:
        async for event in _events(client, target.url, body):
            now = time.perf_counter()
            usage = event.get("usage")
            counted = usage["completion_tokens"] if usage else counted
            if not _has_token(event):
                continue
            if outcome.output_tokens == 0:
                outcome.ttft = now - started
            else:
                outcome.intervals.append(now - last)
            outcome.output_tokens += 1
            last = now
    except (httpx2.HTTPError, RequestError, ValueError, KeyError, TypeError) as error:
        outcome.error = f"{type(error).__name__}: {error}"
        return outcome
    outcome.latency = last - started
    if counted is not None:
        outcome.output_tokens = counted
    if outcome.output_tokens == 0:
        outcome.error = "the answer has no token"
    return outcome


async def _events(
    client: httpx2.AsyncClient, url: str, body: dict[str, Any]
) -> AsyncGenerator[dict[str, Any], None]:
    """The documents of a stream; RequestError for a status or an event of an error."""
    async with client.stream("POST", url, json=body) as answer:
        if answer.status_code != httpx2.codes.OK:
            text = (await answer.aread()).decode(errors="replace")
            raise RequestError(f"status {answer.status_code}: {text[:200]}")
        async for line in answer.aiter_lines():
            data = line.removeprefix("data:").strip()
            if data == "[DONE]":
                return
            if not line.startswith("data:"):
                continue
            event: dict[str, Any] = json.loads(data)
            if "error" in event:
                raise RequestError(str(event["error"])[:200])
            yield event


def _has_token(event: dict[str, Any]) -> bool:
    """Chats begin and end with events that have none; in completions a token may have no text yet."""
    if not event.get("choices"):
        return False
    delta = event["choices"][0].get("delta")
    return delta is None or any(delta.get(name) for name in ("content", "reasoning", "reasoning_content"))


def _listens(base_url: str) -> bool:
    try:
        httpx2.get(base_url, timeout=30)
    except httpx2.ConnectError:
        return False
    return True


def find_model(base_url: str, api_key: str | None, *, patience: float = 0.0) -> dict[str, Any]:
    """The first model that a server has; RequestError if there is no such server within ``patience`` s."""
    headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
    end = time.monotonic() + patience
    try:
        while time.monotonic() < end and not _listens(base_url):
            time.sleep(0.2)
        answer = httpx2.get(f"{base_url.rstrip('/')}/v1/models", headers=headers, timeout=30)
        answer.raise_for_status()
        found: dict[str, Any] = answer.json()["data"][0]
    except (httpx2.HTTPError, httpx2.InvalidURL, ValueError, KeyError, IndexError, TypeError) as error:
        reason = re.sub(r"^\[Errno \d+\] ", "", str(error)).split("\n", 1)[0]
        raise RequestError(f"no server with OpenAI's API at {base_url}: {reason}") from None
    return found
