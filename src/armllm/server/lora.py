"""POST /v1/load_lora_adapter and /v1/unload_lora_adapter."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.responses import PlainTextResponse

from armllm.server.http import read_body
from armllm.server.protocol.adapters import LoadAdapterRequest, UnloadAdapterRequest

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from armllm.server.service import Service


async def load_adapter(request: Request) -> Response:
    """Serve an adapter from now on."""
    service: Service = request.app.state.service
    body = await read_body(request, LoadAdapterRequest)
    await service.adapters.load(body.lora_name, body.lora_path, replace=body.load_inplace)
    return PlainTextResponse(f"Success: LoRA adapter {body.lora_name!r} was loaded.")


async def unload_adapter(request: Request) -> Response:
    """Serve an adapter no longer."""
    service: Service = request.app.state.service
    body = await read_body(request, UnloadAdapterRequest)
    await service.adapters.unload(body.lora_name, body.lora_int_id)
    return PlainTextResponse(f"Success: LoRA adapter {body.lora_name!r} was unloaded.")
