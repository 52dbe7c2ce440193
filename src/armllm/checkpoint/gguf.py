"""The tensors of GGUF files under the names of Hugging Face's checkpoints.

Source of names and conventions: llama.cpp's gguf-py/gguf/constants.py and convert_hf_to_gguf.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from armllm.checkpoint.gguf_blocks import BLOCKS, dequantize
from armllm.checkpoint.gguf_experts import layer_names
from armllm.checkpoint.gguf_file import PERMUTED, open_gguf

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from armllm.checkpoint.mapping import Span

OUTSIDE = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_qkv": "self_attn.qkv_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
GEMMA_LAYER = {
    "ffn_norm": "pre_feedforward_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
# Norms whose names say where they are: behind attention (OLMo 2), or between it and the feed-forward part.
NAMED_NORMS = ("olmo2", "seed_oss")
POST_NORMS = {
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
# gpt-oss's, which are no weights and biases of modules
WHOLE = {
    ("attn_sinks", "weight"): "self_attn.sinks",
    ("ffn_gate_exps", "bias"): "mlp.experts.gate_proj_bias",
    ("ffn_up_exps", "bias"): "mlp.experts.up_proj_bias",
    ("ffn_down_exps", "bias"): "mlp.experts.down_proj_bias",
}
# Read into the configuration, not into the model.
FACTORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
NUM_DIMENSIONS = 3  # of a tensor of all experts: expert, row, input


class GGUFCheckpoint:
    """The tensors of a file by Hugging Face's names; stands in for `Checkpoint`."""

    def __init__(self, path: Path) -> None:
        self.folder = path.parent
        self._path = path
        self._file = open_gguf(path)
        # and which of the experts that the tensor holds, None for all of it
        self._names: dict[str, tuple[str, int | None]] = {}
        for name in self._file.tensors:
            if name not in FACTORS:
                self._names |= self._translate(name)

    def names(self) -> set[str]:
        """All tensors in the file."""
        return set(self._names)

    def describe(self, name: str) -> tuple[str, tuple[int, ...]]:
        """A tensor's dtype, as safetensors writes it, and shape."""
        stored, expert = self._names[name]
        shape = self._file.shape(stored)
        if name.endswith("shared_expert_gate.weight") and len(shape) == 1:  # the converter has squeezed it
            shape = (1, *shape)
        return self._file.tensors[stored].type, shape if expert is None else shape[1:]

    def read(self, name: str) -> Tensor:
        """A tensor: mapped from the file if it is a floating-point one, else dequantized to fp32."""
        kind, stored = self.read_blocks(name)
        return dequantize(kind, stored) if kind in BLOCKS else stored

    def read_blocks(self, name: str) -> tuple[str, Tensor]:
        """A tensor's type, and the tensor as it is stored: quantized ones as bytes ``[N, blocks, bytes]``."""
        stored, expert = self._names[name]
        tensor = self._file.tensor(stored)
        if expert is not None:
            tensor = tensor[expert]
        elif name.endswith("shared_expert_gate.weight") and tensor.ndim == 1:
            tensor = tensor.unsqueeze(0)
        return self._file.tensors[stored].type, self._in_order(name, tensor)

    def _in_order(self, name: str, tensor: Tensor) -> Tensor:
        """The tensor with its rows as Hugging Face has them."""
        kind = name.split(".")[-2]
        if self._file.architecture in PERMUTED and kind in ("q_proj", "k_proj"):
            heads = self._file.own("attention.head_count")
            return _unpermute(
                tensor, heads if kind == "q_proj" else self._file.own("attention.head_count_kv", heads)
            )
        return tensor

    def where(self, name: str) -> Path:
        """The file that holds a tensor."""
        return self._file.where(self._names[name][0])

    def spans(self) -> list[Span]:
        """Where the file is mapped, or its parts."""
        return [part.span for part in self._file.parts.values()]

    def _translate(self, name: str) -> dict[str, tuple[str, int | None]]:
        """Hugging Face's name, or those of experts, each with the tensor and the expert's number.

        A name that is not known stays as it is, and is then found to be left over.
        """
        gemma = self._file.architecture.startswith("gemma")
        own, experts = layer_names(self._file.architecture)
        layer = LAYER | own | (GEMMA_LAYER if gemma else {})
        if self._file.architecture == "phi3":
            layer = layer | {"ffn_up": "mlp.gate_up_proj"}
        if self._file.architecture in NAMED_NORMS:
            layer = layer | POST_NORMS
        stem, _, ending = name.rpartition(".")
        if stem in OUTSIDE:
            return {f"{OUTSIDE[stem]}.{ending}": (name, None)}
        block, _, rest = stem.partition(".")
        index, _, part = rest.partition(".")
        if block == "blk" and (part, ending) in WHOLE:
            return {f"model.layers.{index}.{WHOLE[part, ending]}": (name, None)}
        if block == "blk" and part in layer:
            return {f"model.layers.{index}.{layer[part]}.{ending}": (name, None)}
        shape = self._file.shape(name)
        if block == "blk" and part in experts and len(shape) == NUM_DIMENSIONS and all(shape):
            place = f"model.layers.{index}.{experts[part]}.{ending}"
            return {place.format(expert): (name, expert) for expert in range(shape[0])}
        return {name: (name, None)}


def _unpermute(tensor: Tensor, heads: int) -> Tensor:
    """Rows of each head as halves again: llama.cpp turns Llama's neighbors (2i, 2i + 1) together."""
    return tensor.unflatten(0, (heads, -1, 2)).transpose(1, 2).flatten(0, 2)  # type: ignore[no-untyped-call, no-any-return]
