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

from armllm.vllm_plugin import ADDED, DISABLED

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def check_interface(kernel: type, config: type, fields: Iterable[str]) -> None:
    """TypeError where vLLM wants methods that ``kernel`` lacks, or its ``config`` lacks ``fields``."""
    methods: frozenset[str] = getattr(kernel, "__abstractmethods__", frozenset())
    if methods:
        raise TypeError(f"it wants {', '.join(sorted(methods))} of a kernel")
    if missing := set(fields) - {field.name for field in dataclasses.fields(config)}:
        raise TypeError(f"its {config.__name__} has no {', '.join(sorted(missing))}")


def prefer(kernel: type, built_in: Sequence[type], kind: str) -> str:
    """Register ``kernel`` before the kernels ``built_in``, for linear layers of ``kind``: "mp" or "int8".

    Where the user has disabled it nothing changes, and the result says so.
    """
    names = [name for name in os.environ.get(DISABLED, "").split(",") if name]
    if kernel.__name__ in names:
        return f"switched off by {DISABLED}"
    behind = [one for one in built_in if one.__name__ not in names]
    for one in (kernel, *(type(f"{one.__name__}AfterArmllm", (one,), {}) for one in behind)):
        register_linear_kernel(one, PlatformEnum.CPU, kind)
    added = [one.__name__ for one in behind]
    os.environ[DISABLED] = ",".join(names + added)
    os.environ[ADDED] = ",".join([*filter(None, [os.environ.get(ADDED)]), *added])
    return ""
