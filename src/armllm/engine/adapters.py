"""The LoRA adapters that are in memory."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING

from armllm.checkpoint.adapter import TENSORS, read_adapter
from armllm.checkpoint.adapter_config import CONFIG
from armllm.checkpoint.hub import HubOptions, resolve_model
from armllm.errors import RequestError
from armllm.lora.request import LoRARequest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from armllm.checkpoint.adapter import Adapter, MatrixShape
    from armllm.engine.config import EngineConfig

logger = logging.getLogger(__name__)


class AdapterCache:
    """Adapters by their requests; beyond max_cpu_loras the least recently used one is forgotten.

    A sequence keeps its adapter until it is finished. ``shapes``: `AdapterSlots.shapes`. May be used by
    several threads at once.
    """

    def __init__(self, config: EngineConfig, shapes: Mapping[str, MatrixShape]) -> None:
        self._config = config
        self._shapes = shapes
        self._most = config.max_cpu_loras or config.max_loras
        self._adapters: OrderedDict[int, tuple[LoRARequest, Adapter]] = OrderedDict()
        self._lock = threading.Lock()
        self._reading = threading.Lock()  # one at a time, for as long as its files take

    def get(self, request: LoRARequest | None) -> Adapter | None:
        """The adapter of a request, read if need be.

        RequestError where the engine takes none, or its number is another's; CheckpointError says what is
        wrong with its files.
        """
        if request is None:
            return None
        if not isinstance(request, LoRARequest):
            raise RequestError(f"lora_request must be a LoRARequest, not {request!r:.80}")
        if not self._config.enable_lora:
            raise RequestError("lora_request needs an engine with enable_lora=True")
        if (adapter := self._known(request)) is not None:
            return adapter
        with self._reading:
            if (adapter := self._known(request)) is not None:  # another thread has read it meanwhile
                return adapter
            adapter = self._read(request)
            with self._lock:
                self._adapters[request.lora_int_id] = request, adapter
                while len(self._adapters) > self._most:
                    self._adapters.popitem(last=False)
            return adapter

    def _known(self, request: LoRARequest) -> Adapter | None:
        """The adapter of a request if it is in memory, from now on as the most recently used one."""
        with self._lock:
            known = self._adapters.get(request.lora_int_id)
            if known is None:
                return None
            if known[0] != request:
                raise RequestError(
                    f"lora_int_id {request.lora_int_id} is that of adapter {known[0].lora_name!r} from"
                    f" {known[0].lora_path}: give each adapter a separate number"
                )
            self._adapters.move_to_end(request.lora_int_id)
            return known[1]

    def forget(self, lora_int_id: int) -> bool:
        """Drop an adapter; requests that use it finish with it. Return whether it was there."""
        with self._lock:
            return self._adapters.pop(lora_int_id, None) is not None

    def numbers(self) -> set[int]:
        """Those of the adapters in memory."""
        with self._lock:
            return set(self._adapters)

    def _read(self, request: LoRARequest) -> Adapter:
        config = self._config
        hub = HubOptions(
            cache_dir=config.download_dir,
            token=config.hf_token,
            patterns=(CONFIG, TENSORS, "adapter_model.bin"),
        )
        folder = resolve_model(request.lora_path, "adapter", hub)
        adapter = read_adapter(
            request.lora_name,
            folder,
            self._shapes,
            max_rank=config.max_lora_rank,
            dtype=config.torch_dtype,
        )
        logger.info(
            "loaded adapter %s: rank %d, %d matrices", adapter.name, adapter.rank, len(adapter.matrices)
        )
        return adapter
