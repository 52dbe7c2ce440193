"""Where the answers of `armllm chat` come from: an engine in this process, or a server."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

from armllm.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

Messages = list[dict[str, str]]
ANSWER_SECONDS = 600.0  # between two pieces of an answer


class LocalModel:
    """A model that is loaded here. ``changes`` are sampling parameters other than the checkpoint's.

    chat_template: the source of a template instead of the checkpoint's.
    """

    def __init__(
        self, model: str, engine: dict[str, Any], changes: dict[str, Any], chat_template: str | None = None
    ) -> None:
        from armllm.api.llm import LLM  # noqa: PLC0415 - torch takes seconds, --help should not
        from armllm.chat import find_template  # noqa: PLC0415
        from armllm.rendering import Renderer  # noqa: PLC0415
        from armllm.sampling_params import RequestOutputKind  # noqa: PLC0415

        llm = LLM(model, **{"max_num_seqs": 1, **engine})
        self.engine, self.tokenizer = llm.llm_engine, llm.get_tokenizer()
        self.template = Renderer(
            chat_template or find_template(self.tokenizer.folder, self.tokenizer.settings, tools=False),
            self.tokenizer.special_texts(),
            self.engine.runner.max_model_len * self.tokenizer.longest_token,
        )
        self.num_tokens = 0  # of the last answer
        self.params = dataclasses.replace(
            llm.get_default_sampling_params(), output_kind=RequestOutputKind.DELTA, **changes
        )

    def answer(self, messages: Messages) -> Generator[str]:
        """The pieces of an answer as they are generated; closing the iterator drops the request."""
        prompt = self.tokenizer.encode(self.template.render(messages), add_special_tokens=False)
        self.engine.add_request("chat", prompt, self.params)
        self.num_tokens = 0
        try:
            while self.engine.has_unfinished_requests():
                with _interrupt_delayed():
                    outputs = self.engine.step()
                for completion in (one for output in outputs for one in output.outputs):
                    self.num_tokens += len(completion.token_ids)
                    yield completion.text
        finally:
            self.engine.abort(["chat"])


def show(pieces: Generator[str], model: LocalModel | RemoteModel, *, stats: bool) -> str:
    """Print the pieces of an answer as they come, and return it; ``stats``: the speed after it.

    KeyboardInterrupt ends the answer; then it carries what there is of it.
    """
    started = time.perf_counter()
    first = None
    answer = ""
    with contextlib.closing(pieces):
        try:
            for piece in pieces:
                first = first or (time.perf_counter() if piece else None)
                print(piece, end="", flush=True)
                answer += piece
        except KeyboardInterrupt:
            raise KeyboardInterrupt(answer) from None
    print()
    if stats and first is not None:
        seconds = time.perf_counter() - started
        print(f"TTFT: {(first - started) * 1000:.2f} ms")
        tokens = model.num_tokens
        print(f"TPS:  {tokens / seconds:.2f} tokens/s ({tokens} tokens in {seconds:.2f}s)")
    return answer


@contextlib.contextmanager
def _interrupt_delayed() -> Iterator[None]:
    """Ctrl-C takes effect at the end: a step that stops half way would leave the engine in no valid state."""
    if threading.current_thread() is not threading.main_thread():  # only it gets signals
        yield
        return
    arrived: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _frame: arrived.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if arrived:
        raise KeyboardInterrupt


class RemoteModel:
    """A model behind OpenAI's API at ``url``, which ends with ``/v1``; ``name`` defaults to its first."""

    def __init__(self, url: str, name: str | None, api_key: str | None, changes: dict[str, Any]) -> None:
        try:
            from armllm.bench import client  # noqa: PLC0415
        except ModuleNotFoundError as error:
            raise RequestError(f"--url needs {error.name}: pip install 'armllm[bench]'") from None

        base = url.rstrip("/").removesuffix("/v1")
        name = name or client.find_model(base, api_key)["id"]
        self.name, self.base = name, base
        self.headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        self.changes = {key: value for key, value in changes.items() if value is not None}
        self.num_tokens = 0  # of the last answer, once it has ended

    def answer(self, messages: Messages) -> Generator[str]:
        """The pieces of an answer as they come; closing the iterator hangs up, which ends the request."""
        for choice in self._stream("/v1/chat/completions", {"messages": messages}):
            yield choice["delta"].get("content") or ""

    def complete(self, prompt: str) -> Generator[str]:
        """The pieces of a completion as they come; closing the iterator ends the request."""
        for choice in self._stream("/v1/completions", {"prompt": prompt}):
            yield choice["text"]

    def _stream(self, path: str, prompt: dict[str, Any]) -> Generator[dict[str, Any]]:
        import httpx2  # noqa: PLC0415 - an extra, looked for above

        url = self.base + path
        body = {
            "model": self.name,
            **prompt,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self.changes,
        }
        try:
            with httpx2.stream(
                "POST", url, json=body, headers=self.headers, timeout=ANSWER_SECONDS
            ) as answer:
                if answer.status_code != httpx2.codes.OK:
                    raise RequestError(_reason(answer.read(), answer.status_code))
                for line in answer.iter_lines():
                    data = line.removeprefix("data:").strip()
                    if not line.startswith("data:") or data == "[DONE]":
                        continue
                    event = json.loads(data)
                    if "error" in event:
                        raise RequestError(str(event["error"].get("message", event["error"]))[:200])
                    if event.get("usage"):
                        self.num_tokens = event["usage"]["completion_tokens"]
                    yield from event["choices"]
        except httpx2.HTTPError as error:
            raise RequestError(f"{url}: {error or type(error).__name__}") from None


def _reason(body: bytes, status: int) -> str:
    """What an error in OpenAI's form says."""
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"status {status}: {body.decode(errors='replace')[:200]}"
