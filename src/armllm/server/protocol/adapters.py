"""Bodies of /v1/load_lora_adapter and /v1/unload_lora_adapter."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import Field

from armllm.server.protocol.base import Body

Name = Annotated[str, Field(min_length=1, max_length=256)]
Place = Annotated[str, Field(min_length=1, max_length=4096)]


class LoadAdapterRequest(Body):
    """lora_path: a folder or a name on the hub. load_inplace: an adapter of this name is replaced."""

    unsupported: ClassVar[dict[str, tuple[Any, ...]]] = {"is_3d_lora_weight": (False,)}

    lora_name: Name
    lora_path: Place
    load_inplace: bool = False


class UnloadAdapterRequest(Body):
    """lora_int_id: refuse the request if the adapter has another number."""

    lora_name: Name
    lora_int_id: int | None = None
