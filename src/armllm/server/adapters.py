"""The adapters that a server has, by name."""

from __future__ import annotations

import asyncio
import itertools
import json
from typing import TYPE_CHECKING, Any

from armllm.errors import CheckpointError, RequestError
from armllm.lora.request import LoRARequest
from armllm.server.errors import ApiError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from armllm.api.async_llm import AsyncLLM
    from armllm.server.engine_process import EngineProcess

MOST_ADAPTERS = 1024


class ServedAdapters:
    """Adapters by the names under which clients ask for them."""

    def __init__(
        self,
        engine: AsyncLLM | EngineProcess,
        adapters: Sequence[LoRARequest],
        model_names: Sequence[str],
    ) -> None:
        self.loaded = {adapter.lora_name: adapter for adapter in adapters}
        self._engine = engine
        self._reserved = model_names
        self._numbers = itertools.count(len(adapters) + 1)
        self._lock = asyncio.Lock()

    async def load(self, name: str, path: str, *, replace: bool) -> None:
        """Read an adapter; ApiError says why not. ``replace``: in place of one of this name."""
        async with self._lock:
            if name in self._reserved:
                raise ApiError(f"{name!r} is the name of the model", param="lora_name", code="invalid_value")
            old = self.loaded.get(name)
            if old is not None and not replace:
                raise ApiError(
                    f"the adapter {name!r} is loaded already: unload it first, or set load_inplace",
                    param="lora_name",
                    code="invalid_value",
                )
            if old is None and len(self.loaded) >= MOST_ADAPTERS:
                raise ApiError(f"no more than {MOST_ADAPTERS} adapters can be loaded: unload one")
            adapter = LoRARequest(name, next(self._numbers), path)
            try:
                await self._engine.add_lora(adapter)
            except CheckpointError as error:
                raise ApiError(str(error), param="lora_path", code="invalid_value") from None
            self.loaded[name] = adapter
            if old is not None:
                await self._engine.remove_lora(old.lora_int_id)

    async def unload(self, name: str, number: int | None) -> None:
        """Take no further requests for an adapter; ApiError if there is none. Those that run finish."""
        async with self._lock:
            adapter = self.loaded.get(name)
            if adapter is None or number not in {None, adapter.lora_int_id}:
                numbered = "" if number is None else f" with lora_int_id {number}"
                raise ApiError(
                    f"there is no adapter {name!r:.80}{numbered}",
                    status=404,
                    param="lora_name",
                    code="model_not_found",
                )
            del self.loaded[name]
            await self._engine.remove_lora(adapter.lora_int_id)


def parse_modules(values: Sequence[str]) -> tuple[LoRARequest, ...]:
    """What --lora-modules lists: ``name=path``, or JSON objects with name and path, or lists of them.

    RequestError says which one can't be read.
    """
    adapters: list[LoRARequest] = []
    for value in values:
        for name, path, base in _modules(value):
            if name in {adapter.lora_name for adapter in adapters}:
                raise RequestError(f"--lora-modules: the name {name!r} occurs twice")
            adapters.append(LoRARequest(name, len(adapters) + 1, path, base))
    return tuple(adapters)


def with_adapters(engine: dict[str, Any], values: Sequence[str] | None) -> tuple[LoRARequest, ...]:
    """What --lora-modules lists, with room for all among the engine's options. Raises as `parse_modules`."""
    if values and not engine.get("enable_lora"):
        raise RequestError("--lora-modules needs --enable-lora")
    adapters = parse_modules(values or ())
    if adapters and "max_cpu_loras" not in engine:
        engine["max_cpu_loras"] = max(len(adapters), engine.get("max_loras", 1))
    return adapters


def _modules(value: str) -> list[tuple[str, str, str | None]]:
    """Name, path and name of the base."""
    if not value.lstrip().startswith(("{", "[")):
        name, _, path = value.partition("=")
        if not name or not path:
            raise RequestError(f"--lora-modules must be name=path or a JSON object, not {value!r:.80}")
        return [(name, path, None)]
    try:
        found: Any = json.loads(value)
    except ValueError as error:
        raise RequestError(f"--lora-modules: {value!r:.80} is not JSON: {error}") from None
    modules = []
    for one in found if isinstance(found, list) else [found]:
        entries = {"base_model_name": None, **one} if isinstance(one, dict) else {}
        texts = [entries.get(key) for key in ("name", "path")]
        base = entries.get("base_model_name")
        if len(entries) > 3 or not all(isinstance(text, str) and text for text in [*texts, base or "x"]):
            raise RequestError(
                f"--lora-modules needs objects with name, path and maybe base_model_name, not {one!r:.80}"
            )
        modules.append((entries["name"], entries["path"], base))
    return modules
