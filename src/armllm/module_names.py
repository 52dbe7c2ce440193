"""Modules under the names that they have in vLLM: `armllm.v1.engine.async_llm` is `armllm.api.async_llm`.

A program for vLLM then runs with `armllm` in its imports, whichever of vLLM's modules it imports from.
Modules that have no counterpart say why.
"""

from __future__ import annotations

import importlib
import sys
from importlib.machinery import ModuleSpec
from typing import TYPE_CHECKING, Any

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

_ABSENT = {
    "assets multimodal": "models take text only",
    "benchmarks": "`armllm bench` measures",
    "compilation": "nothing is compiled here",
    "config": "LLM and EngineArgs take each option by its name",
    "distributed.kv_transfer distributed.kv_events": "the KV cache stays in this process",
    "distributed.weight_transfer": "the weights of an engine do not change: load the new ones as another one",
    "entrypoints.cli entrypoints.launchers entrypoints.serve": "start `armllm serve`",
    "entrypoints.pooling": "answers of /pooling and /v1/embeddings are JSON",
    "forward_context v1.core v1.executor v1.request v1.worker v1.kv_cache_interface": (
        "the engine has other parts: see armllm.engine"
    ),
    "model_executor": "models, layers and loading are in armllm.models, armllm.layers and armllm.checkpoint",
    "platforms": "this engine computes on CPUs only; armisa describes them",
    "plugins": "the engine loads no plugins",
    "renderers tokenizers transformers_utils": "see LLM.chat and LLM.get_tokenizer",
    "triton_utils scalar_type _custom_ops": "the kernels are in armllm.kernels",
    "utils.serial_utils": "vectors are little-endian fp32, which numpy.frombuffer reads",
    "v1.metrics.loggers": "see LLM.get_metrics, and /metrics of a server",
    "v1.sample": "a program brings no code here; use logit_bias, bad_words or structured_outputs",
    "v1.spec_decode": "there is no speculative decoding",
    "v1.watermarking": "tokens are sampled without a watermark",
}
_REASONS = {name: reason for names, reason in _ABSENT.items() for name in names.split()}


class _Names:
    """A finder and a loader, without the classes of importlib.abc: their module takes 8 ms to import."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002 - importlib asks with it
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        package, _, name = fullname.partition(".")
        if package != "armllm" or name not in NAMES:
            if package == "armllm" and name in _REASONS:
                raise ModuleNotFoundError(f"No module named {fullname!r}: {_REASONS[name]}", name=fullname)
            return None
        holds_others = any(one.startswith(f"{name}.") for one in NAMES)
        loader: Any = self  # importlib calls two methods, whatever the class
        return ModuleSpec(fullname, loader, is_package=holds_others)

    def create_module(self, spec: ModuleSpec) -> None:
        """Let importlib make a plain module."""

    def exec_module(self, module: ModuleType) -> None:
        home = NAMES[module.__name__.partition(".")[2]]
        if home:
            found = vars(importlib.import_module(f"armllm.{home}"))
            vars(module).update({name: found[name] for name in found if not name.startswith("_")})


def add_module_names() -> None:
    """Let `import` find them, after all modules that are files."""
    sys.meta_path.append(_Names())
