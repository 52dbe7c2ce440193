"""vLLM's module of this name: its argument parser and its helpers, which load on first use."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from armllm.utils.argparse_utils import FlexibleArgumentParser
    from armllm.utils.programs import random_uuid

__all__ = ["FlexibleArgumentParser", "random_uuid"]

_HOMES = {"FlexibleArgumentParser": "argparse_utils", "random_uuid": "programs"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'armllm.utils' has no attribute {name!r}")
    return getattr(importlib.import_module(f"armllm.utils.{_HOMES[name]}"), name)
