"""How vLLM chooses our kernels, although it tries its own first.

``VLLM_DISABLED_KERNELS`` is vLLM's variable for kernels that it must not choose. The built-in ones that ours
replace are named there, and registered once more behind ours, under another name. So vLLM takes them where
ours cannot compute a layer.
"""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING

from vllm.model_executor.kernels.linear import register_linear_kernel
from vllm.platforms import PlatformEnum

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

DISABLED = "VLLM_DISABLED_KERNELS"
# what the user had there: a child process finds the variable as its parent left it
BEFORE = "ARMLLM_VLLM_DISABLED_BEFORE"


def check_interface(kernel: type, config: type, fields: Iterable[str]) -> None:
    """TypeError where vLLM wants methods that ``kernel`` lacks, or its ``config`` lacks ``fields``."""
    methods: frozenset[str] = getattr(kernel, "__abstractmethods__", frozenset())
    if methods:
        raise TypeError(f"it wants {', '.join(sorted(methods))} of a kernel")
    if missing := set(fields) - {field.name for field in dataclasses.fields(config)}:
        raise TypeError(f"its {config.__name__} has no {', '.join(sorted(missing))}")


def prefer(kernel: type, built_in: Sequence[type], kind: str) -> None:
    """Register ``kernel`` before the kernels ``built_in``, for linear layers of ``kind``: "mp" or "int8".

    A kernel that the user has disabled stays so.
    """
    before = os.environ.setdefault(BEFORE, os.environ.get(DISABLED, ""))
    by_user = {name for name in before.split(",") if name}
    behind = [one for one in built_in if one.__name__ not in by_user]
    for one in (kernel, *(type(f"{one.__name__}AfterArmllm", (one,), {}) for one in behind)):
        register_linear_kernel(one, PlatformEnum.CPU, kind)
    now = os.environ.get(DISABLED, "")
    names = [name for name in now.split(",") if name]
    names += [one.__name__ for one in behind if one.__name__ not in names]
    os.environ[DISABLED] = ",".join(names)
