"""Measure what HTTP costs per streamed token: CPU time of the server's event loop, without any model.

The engine is replaced by one that has a token ready at once; clients are in a process of their own.

    python tools/bench_http.py --clients 1,8,32
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import socket
import sys
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from armllm.engine.caller import Caller
    from armllm.outputs import RequestOutput
    from armllm.sampling_params import SamplingParams


async def ready_tokens(
    prompt: list[int],
    params: SamplingParams,
    request_id: str,
    _priority: int,
    _adapter: None,
    *,
    caller: Caller,  # noqa: ARG001 - all have the same
) -> AsyncIterator[RequestOutput]:
    """Yield the same token again and again, one per turn of the event loop."""
    from armllm.outputs import CompletionOutput, RequestOutput  # noqa: PLC0415 - not for the clients

    count = params.max_tokens or 1
    for number in range(count):
        await asyncio.sleep(0)
        last = number == count - 1
        completion = CompletionOutput(0, " word", [5], finish_reason="length" if last else None)
        yield RequestOutput(request_id, None, prompt, [completion], last)


class RefusedError(Exception):
    """An answer without all its tokens: the time per token would count tokens that never came."""


async def read_stream(port: int, tokens: int) -> None:
    """Read an answer to its end; RefusedError if it is not one of ``tokens`` tokens."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = json.dumps({"prompt": "x", "stream": True, "max_tokens": tokens}).encode()
    head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}"
    writer.write(head.encode() + b"\r\n\r\n" + body)
    answer = await reader.read()
    writer.close()
    status = b"".join(answer.split(b" ", 2)[1:2]).decode() or "nothing"
    if status != "200":
        raise RefusedError(f"the server answered {status}, not 200: {answer.splitlines()[-1:]}")
    if (count := answer.count(b'" word"')) != tokens:
        raise RefusedError(f"{count} tokens came, not {tokens}")


def run_clients(port: int, clients: int, tokens: int) -> None:
    async def run() -> None:
        await asyncio.gather(*(read_stream(port, tokens) for _ in range(clients)))

    try:
        asyncio.run(run())
    except (RefusedError, OSError) as error:
        sys.exit(f"bench_http: {error}")


def measure(clients: int, tokens: int) -> float:
    """CPU seconds of the event loop's thread per token; SystemExit if a client did not get all of them."""
    import uvicorn  # noqa: PLC0415 - the clients' process need not import all this

    from armllm import AsyncLLM  # noqa: PLC0415
    from armllm.server.app import create_app  # noqa: PLC0415
    from armllm.server.service import ServerOptions, Service  # noqa: PLC0415
    from armllm.smoke.passages import MODEL  # noqa: PLC0415

    engine = AsyncLLM(str(MODEL), dtype="float32")
    engine.generate = ready_tokens  # type: ignore[method-assign, assignment]
    times = []

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            times.append(time.thread_time())

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            times.append(time.thread_time())
            await super().shutdown(sockets)

    app = create_app(Service(engine, ServerOptions(served_model_names=("model",))))
    options = {"lifespan": "off", "log_level": "warning", "access_log": False}
    server = Server(uvicorn.Config(app, http="httptools", loop="asyncio", ws="none", **options))  # type: ignore[arg-type]
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listening:
        listening.bind(("127.0.0.1", 0))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        while not server.started:
            time.sleep(0.01)
        client = multiprocessing.get_context("spawn").Process(
            target=run_clients, args=(listening.getsockname()[1], clients, tokens)
        )
        client.start()
        client.join()
        server.should_exit = True
        thread.join()
    engine.shutdown()
    if client.exitcode:
        sys.exit(client.exitcode)
    return (times[1] - times[0]) / (clients * tokens)


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure what HTTP costs per streamed token.")
    parser.add_argument("--clients", default="1,8,32", metavar="N[,N]")
    parser.add_argument("--tokens", type=int, default=500)
    arguments = parser.parse_args()
    print("| clients | CPU time per token |")
    print("| ---: | ---: |")
    for clients in map(int, arguments.clients.split(",")):
        print(f"| {clients} | {1e6 * measure(clients, arguments.tokens):.0f} µs |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
