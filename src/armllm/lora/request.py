"""Which adapter a request uses."""

from __future__ import annotations

import dataclasses

from armllm.errors import RequestError


@dataclasses.dataclass(frozen=True)
class LoRARequest:
    """An adapter in PEFT's format: its name, a number from 1 that stands for it, and its folder or hub name.

    base_model_name: what a server's list of models shows as its parent; default: the model.
    load_inplace and is_3d_lora_weight are vLLM's, and can only be False here.
    Raises RequestError (a ValueError) for an empty name or path, or another number.
    """

    lora_name: str
    lora_int_id: int
    lora_path: str
    base_model_name: str | None = None
    load_inplace: bool = False
    is_3d_lora_weight: bool = False

    def __post_init__(self) -> None:
        for field in ("load_inplace", "is_3d_lora_weight"):
            if getattr(self, field) is not False:
                raise RequestError(f"{field} can only be False here, not {getattr(self, field)!r:.80}")
        for field in ("lora_name", "lora_path"):
            value = getattr(self, field)
            if not isinstance(value, str) or not value:
                raise RequestError(f"{field} must be a text that is not empty, not {value!r:.80}")
        if (
            not isinstance(self.lora_int_id, int)
            or isinstance(self.lora_int_id, bool)
            or self.lora_int_id < 1
        ):
            raise RequestError(f"lora_int_id must be a positive integer, not {self.lora_int_id!r:.80}")

    @property
    def adapter_id(self) -> int:
        """The number."""
        return self.lora_int_id

    @property
    def name(self) -> str:
        """The name."""
        return self.lora_name

    @property
    def path(self) -> str:
        """The folder, or the name on the hub."""
        return self.lora_path
