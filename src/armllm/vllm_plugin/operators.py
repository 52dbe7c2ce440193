"""How our norms, activations and rotary embeddings get into the place of vLLM's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm.model_executor.custom_op import CustomOp

from armllm.vllm_plugin.interface import check_call

if TYPE_CHECKING:
    from collections.abc import Iterable


def replace_operators(pairs: Iterable[tuple[Any, Any]]) -> None:
    """Let vLLM build the second of each pair where it would build the first, or change nothing.

    TypeError where one of vLLM's has another interface. Ours has the name that switches vLLM's on and off.
    vLLM calls ``forward_cpu`` with ``--enforce-eager``, and for those that ``custom_ops`` of its compilation
    config names. Otherwise torch's compiler makes loops of ``forward_native``.
    """
    pairs = list(pairs)
    for layer, ours in pairs:
        check_call(ours.forward_cpu, layer.forward_native)
    for layer, ours in pairs:
        name = layer.name
        CustomOp.register_oot(ours, name=layer.__name__)
        ours.name = name
