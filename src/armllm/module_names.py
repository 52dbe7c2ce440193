"""Modules under the names that they have in vLLM: `armllm.v1.engine.async_llm` is `armllm.api.async_llm`.

A program for vLLM then runs with `armllm` in its imports, whichever of vLLM's modules it imports from.
"""

from __future__ import annotations

import importlib
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

# "" is a package that only holds others
NAMES = {
    "distributed": "utils.programs",
    "distributed.parallel_state": "utils.programs",
    "engine.async_llm_engine": "api.async_llm_engine",
    "engine.llm_engine": "api.llm_engine",
    "entrypoints.llm": "api.llm",
    "logger": "utils.programs",
    "logprobs": "outputs",
    "pooling_params": "sampling_params",
    "usage": "",
    "usage.usage_lib": "utils.programs",
    "utils.system_utils": "utils.programs",
    "v1": "",
    "v1.engine": "",
    "v1.engine.async_llm": "api.async_llm_engine",
    "v1.engine.llm_engine": "api.llm_engine",
    "v1.metrics": "",
    "v1.metrics.reader": "engine.metrics",
}


class _Names(MetaPathFinder, Loader):
    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002 - importlib asks with it
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        package, _, name = fullname.partition(".")
        if package != "armllm" or name not in NAMES:
            return None
        holds_others = any(one.startswith(f"{name}.") for one in NAMES)
        return ModuleSpec(fullname, self, is_package=holds_others)

    def exec_module(self, module: ModuleType) -> None:
        home = NAMES[module.__name__.partition(".")[2]]
        if home:
            found = vars(importlib.import_module(f"armllm.{home}"))
            vars(module).update({name: found[name] for name in found if not name.startswith("_")})


def add_module_names() -> None:
    """Let `import` find them, after all modules that are files."""
    sys.meta_path.append(_Names())
