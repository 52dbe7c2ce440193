"""GGUF files as llama.cpp writes them: weights under the names of Hugging Face's checkpoints.

Source of names, keys and conventions: llama.cpp's gguf-py/gguf/constants.py and convert_hf_to_gguf.py.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from armllm.errors import CheckpointError
from armllm.models.gguf_experts import expert_fields, layer_names
from armllm.models.gguf_header import DTYPES, GGUFHeader, StoredTensor
from armllm.quant.gguf_blocks import BLOCKS, dequantize

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

# general.architecture -> ours
ARCHITECTURES = {
    "gemma2": "Gemma2ForCausalLM",
    "gemma3": "Gemma3ForCausalLM",
    "llama": "LlamaForCausalLM",
    "olmoe": "OlmoeForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen2moe": "Qwen2MoeForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3moe": "Qwen3MoeForCausalLM",
}
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
# Read into the configuration, not into the model.
FACTORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
NUM_DIMENSIONS = 3  # of a tensor of all experts: expert, row, input
NO_TENSOR = StoredTensor(type="F32", shape=(), offset=0)


class GGUFFile:
    """Header and mapped tensors of one file, or of all parts that gguf-split made, by the first's path."""

    def __init__(self, path: Path) -> None:
        header = GGUFHeader(path)
        self.path = path
        self._values = header.values
        self.parts = {path: header} | {part: GGUFHeader(part) for part in self._other_parts()}
        self._homes = {name: part for part, found in self.parts.items() for name in found.tensors}
        self.tensors = {name: found.tensors[name] for found in self.parts.values() for name in found.tensors}
        wanted = _positive(self.get("split.tensors.count"))
        if len(self.parts) > 1 and len(self.tensors) != wanted:
            raise CheckpointError(f"{path}: its parts hold {len(self.tensors)} tensors, and it says {wanted}")
        self.architecture = str(self.get("general.architecture", ""))
        if self.architecture not in ARCHITECTURES:
            raise CheckpointError(
                f"{path}: GGUF architecture {self.architecture!r} is not supported, only"
                f" {', '.join(ARCHITECTURES)}"
            )
        unknown = sorted({stored.type for stored in self.tensors.values()} - {*DTYPES, *BLOCKS})
        if unknown:
            raise CheckpointError(
                f"{path}: tensors of type {', '.join(unknown)} are not supported, only"
                f" {', '.join((*DTYPES, *BLOCKS))}"
            )

    def get(self, key: str, default: Any = None) -> Any:
        """A value of the header."""
        return self._values.get(key, default)

    def own(self, key: str, default: Any = None) -> Any:
        """A value that the header has under the architecture's name."""
        return self.get(f"{self.architecture}.{key}", default)

    def tensor(self, name: str) -> Tensor:
        """A tensor as it is stored."""
        return self.parts[self._homes[name]].map(name)

    def where(self, name: str) -> Path:
        """The file that holds a tensor."""
        return self._homes[name]

    def _other_parts(self) -> list[Path]:
        """The files after the first, by gguf-split's names."""
        count, number = _positive(self.get("split.count")), _positive(self.get("split.no"))
        if count <= 1:
            return []
        ending = f"-of-{count:05d}.gguf"
        stem = self.path.name.removesuffix(ending)[: -len("00001")]
        if number or self.path.name != f"{stem}00001{ending}":
            raise CheckpointError(
                f"{self.path} is part {number + 1} of {count}: name the first, which ends in -00001{ending}"
            )
        return [self.path.with_name(f"{stem}{part:05d}{ending}") for part in range(2, count + 1)]

    def shape(self, name: str) -> tuple[int, ...]:
        """Outermost dimension first, as torch has it."""
        return self.tensors[name].shape


@functools.lru_cache(maxsize=1)
def _opened(path: Path, _modified: int) -> GGUFFile:
    return GGUFFile(path)


def open_gguf(path: Path) -> GGUFFile:
    """The file, parsed once for configuration, tokenizer and weights."""
    return _opened(path, path.stat().st_mtime_ns)


def forget_gguf() -> None:
    """Let go of the parsed header, whose vocabulary takes tens of megabytes."""
    _opened.cache_clear()


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
        """A tensor: mapped from the file if it is a floating-point one, else dequantised to fp32."""
        kind, stored = self.read_blocks(name)
        return dequantize(kind, stored) if kind in BLOCKS else stored

    def read_blocks(self, name: str) -> tuple[str, Tensor]:
        """A tensor's type, and the tensor as it is stored: quantised ones as bytes ``[N, blocks, bytes]``."""
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
        if self._file.architecture == "llama" and kind in ("q_proj", "k_proj"):
            heads = self._file.own("attention.head_count")
            return _unpermute(
                tensor, heads if kind == "q_proj" else self._file.own("attention.head_count_kv", heads)
            )
        return tensor

    def where(self, name: str) -> Path:
        """The file that holds a tensor."""
        return self._file.where(self._names[name][0])

    def files(self) -> list[Path]:
        """The file, or its parts."""
        return list(self._file.parts)

    def _translate(self, name: str) -> dict[str, tuple[str, int | None]]:
        """Hugging Face's name, or those of experts, each with the tensor and the expert's number.

        A name that is not known stays as it is, and is then found to be left over.
        """
        gemma = self._file.architecture.startswith("gemma")
        own, experts = layer_names(self._file.architecture)
        layer = LAYER | own | (GEMMA_LAYER if gemma else {})
        if self._file.architecture == "phi3":
            layer = layer | {"ffn_up": "mlp.gate_up_proj"}
        stem, _, ending = name.rpartition(".")
        if stem in OUTSIDE:
            return {f"{OUTSIDE[stem]}.{ending}": (name, None)}
        block, _, rest = stem.partition(".")
        index, _, part = rest.partition(".")
        if block == "blk" and part in layer:
            return {f"model.layers.{index}.{layer[part]}.{ending}": (name, None)}
        shape = self._file.shape(name)
        if block == "blk" and part in experts and len(shape) == NUM_DIMENSIONS and all(shape):
            place = f"model.layers.{index}.{experts[part]}.{ending}"
            return {place.format(expert): (name, expert) for expert in range(shape[0])}
        return {name: (name, None)}


def _unpermute(tensor: Tensor, heads: int) -> Tensor:
    """Rows of each head as halves again: llama.cpp turns Llama's neighbours (2i, 2i + 1) together."""
    return tensor.unflatten(0, (heads, -1, 2)).transpose(1, 2).flatten(0, 2)  # type: ignore[no-untyped-call, no-any-return]


def read_gguf_config(path: Path) -> dict[str, Any]:
    """What config.json would say; CheckpointError names what can't be said in it."""
    file = open_gguf(path)
    architecture, own = file.architecture, file.own
    heads, hidden_size = own("attention.head_count"), own("embedding_length")
    head_dim = own("attention.key_length", _positive(hidden_size) // max(1, _positive(heads)))
    rotary_dim = own("rope.dimension_count", head_dim)
    if not all(map(_positive, (heads, hidden_size, head_dim, rotary_dim))):
        raise CheckpointError(
            f"{path}: head_count, embedding_length, key_length and dimension_count must be positive integers"
        )
    if len(file.tensors.get("token_embd.weight", NO_TENSOR).shape) != 2:
        raise CheckpointError(f"{path}: tensor token_embd.weight is missing or no matrix")
    if own("attention.value_length", head_dim) != head_dim:
        raise CheckpointError(f"{path}: keys and values of different lengths are not supported")
    bias = "blk.0.attn_q.bias" in file.tensors
    values = {
        "architectures": [ARCHITECTURES[architecture]],
        "vocab_size": file.shape("token_embd.weight")[0],
        "hidden_size": hidden_size,
        "intermediate_size": own("feed_forward_length"),
        "num_hidden_layers": own("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": own("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "max_position_embeddings": own("context_length"),
        "rms_norm_eps": own("attention.layer_norm_rms_epsilon"),
        "rope_theta": own("rope.freq_base", 10000.0),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "eos_token_id": file.get("tokenizer.ggml.eos_token_id"),
    }
    if architecture in ("llama", "olmoe", "qwen3", "qwen3moe"):
        values["attention_bias"] = bias
    if architecture == "llama":
        values["mlp_bias"] = "blk.0.ffn_gate.bias" in file.tensors
    if architecture.startswith("gemma"):
        values |= _gemma(file, head_dim)
    elif own("attention.sliding_window"):
        values["sliding_window"] = own("attention.sliding_window")
    if rotary_dim != head_dim:
        values["partial_rotary_factor"] = rotary_dim / head_dim
    return values | expert_fields(file) | _rope(file)


def _positive(value: Any) -> int:
    """The value where it is a positive integer, else 0."""
    return value if isinstance(value, int) and value > 0 else 0


def _gemma(file: GGUFFile, head_dim: int) -> dict[str, Any]:
    """What llama.cpp knows of Gemma without reading it from the file."""
    own = file.own
    # the two models of 27 billion parameters, known by their layers, divide by another root
    largest = {"gemma2": 46, "gemma3": 62}[file.architecture] == own("block_count")
    values = {
        "hidden_activation": "gelu_pytorch_tanh",
        "norm_weights_are_offset": True,  # stored with the one that is added
        "query_pre_attn_scalar": own("embedding_length") // own("attention.head_count")
        if largest
        else head_dim,
        "sliding_window": own("attention.sliding_window"),
        "final_logit_softcapping": own("final_logit_softcapping"),
    }
    if file.architecture == "gemma2":
        return values | {"attn_logit_softcapping": own("attn_logit_softcapping")}
    return values | {"rope_local_base_freq": own("rope.freq_base_swa", 10000.0)}


def _rope(file: GGUFFile) -> dict[str, Any]:
    """Scaling of the rotary embedding, from the header and from tensors of factors."""
    kind, own = str(file.own("rope.scaling.type", "none")), file.own
    original = own("rope.scaling.original_context_length")
    if "rope_factors_long.weight" in file.tensors:
        scaling = {
            "rope_type": "longrope",
            "long_factor": file.tensor("rope_factors_long.weight").tolist(),
            "short_factor": file.tensor("rope_factors_short.weight").tolist(),
            "attention_factor": own("rope.scaling.attn_factor"),
        }
        return {"rope_scaling": scaling, "original_max_position_embeddings": original}
    if "rope_freqs.weight" in file.tensors:
        # Llama 3's blend, worked out: divisors that hold for every length
        factors = file.tensor("rope_freqs.weight").tolist()
        scaling = {"rope_type": "longrope", "long_factor": factors, "short_factor": factors}
        return {"rope_scaling": scaling | {"attention_factor": 1.0}}
    if kind == "none":
        return {}
    if kind not in ("linear", "yarn"):
        raise CheckpointError(f"{file.path}: rope.scaling.type {kind!r} is not supported")
    scaling = {"rope_type": kind, "factor": own("rope.scaling.factor")}
    if kind == "yarn":
        scaling["original_max_position_embeddings"] = original
    return {"rope_scaling": scaling}
