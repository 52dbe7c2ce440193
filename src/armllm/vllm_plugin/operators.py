"""How our norms, activations and rotary embeddings get into the place of vLLM's."""

from __future__ import annotations

from typing import Any

from vllm.model_executor.custom_op import CustomOp

from armllm.vllm_plugin.interface import check_call


def replace_operator(layer: Any, ours: Any) -> None:
    """Let vLLM build ``ours`` where it would build ``layer``, under the name that switches it on and off.

    vLLM calls ``forward_cpu`` with ``--enforce-eager``, and for those that ``custom_ops`` of its compilation
    config names. Otherwise torch's compiler makes loops of ``forward_native``.
    """
    check_call(ours.forward_cpu, layer.forward_native)
    name = layer.name
    CustomOp.register_oot(ours, name=layer.__name__)
    ours.name = name
