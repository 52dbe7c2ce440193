"""What the header of a GGUF file says of the model, as config.json would say it.

Source of keys and conventions: llama.cpp's gguf-py/gguf/constants.py and convert_hf_to_gguf.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from armllm.checkpoint.gguf_experts import expert_fields
from armllm.checkpoint.gguf_file import ARCHITECTURES, GGUFFile, open_gguf, positive
from armllm.checkpoint.gguf_header import StoredTensor
from armllm.checkpoint.gguf_recurrent import DELTA_NETS, RECURRENT, delta_net_fields
from armllm.errors import CheckpointError

if TYPE_CHECKING:
    from pathlib import Path

# whose config.json says whether queries, keys and values have biases
BIASED = ("gpt-oss", "granite", "llama", "olmo2", "olmoe", "qwen3", "qwen3moe", "seed_oss")
NO_TENSOR = StoredTensor(type="F32", shape=(), offset=0)
LAST = 3  # llama.cpp's number of the pooling of last tokens


def read_gguf_config(path: Path) -> dict[str, Any]:
    """What config.json would say; CheckpointError names what can't be said in it."""
    file = open_gguf(path)
    architecture, own = file.architecture, file.own
    heads, hidden_size = own("attention.head_count"), own("embedding_length")
    head_dim = own("attention.key_length", positive(hidden_size) // max(1, positive(heads)))
    rotary_dim = own("rope.dimension_count", head_dim)
    if not all(map(positive, (heads, hidden_size, head_dim, rotary_dim))):
        raise CheckpointError(
            f"{path}: head_count, embedding_length, key_length and dimension_count must be positive integers"
        )
    if len(file.tensors.get("token_embd.weight", NO_TENSOR).shape) != 2:
        raise CheckpointError(f"{path}: tensor token_embd.weight is missing or no matrix")
    if own("attention.value_length", head_dim) != head_dim:
        raise CheckpointError(f"{path}: keys and values of different lengths are not supported")
    values = {
        "architectures": [ARCHITECTURES[architecture]],
        "vocab_size": file.shape("token_embd.weight")[0],
        "hidden_size": hidden_size,
        "intermediate_size": own("feed_forward_length"),
        "num_hidden_layers": file.num_layers(),
        "num_attention_heads": heads,
        "num_key_value_heads": own("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "max_position_embeddings": own("context_length"),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "eos_token_id": file.get("tokenizer.ggml.eos_token_id"),
    }
    if architecture in FIRST_MODELS:
        values |= FIRST_MODELS[architecture](file, rotary_dim / head_dim)
    else:
        values["rms_norm_eps"] = file.required_value("attention.layer_norm_rms_epsilon")
        values["rope_theta"] = own("rope.freq_base", 10000.0)
        if rotary_dim != head_dim:
            values["partial_rotary_factor"] = rotary_dim / head_dim
        values |= _own_fields(file, head_dim, rotary_dim)
    values |= _biases(file) | expert_fields(file) | _rope(file)
    file.only("attention.causal", True)
    file.only("pooling_type", 0, LAST)
    for key in ("expert_group_count", "expert_group_used_count"):
        file.only(key, 0, 1)
    file.refuse_unread()
    return values


def _own_fields(file: GGUFFile, head_dim: int, rotary_dim: int) -> dict[str, Any]:
    """What the families have that Llama's does not."""
    architecture = file.architecture
    if architecture.startswith("gemma"):
        return _gemma(file, head_dim)
    if architecture == "granite":
        return _granite(file, head_dim)
    if architecture in RECURRENT:
        return RECURRENT[architecture](file)
    if architecture in DELTA_NETS:
        return delta_net_fields(file, rotary_dim / head_dim)
    window = file.own("attention.sliding_window")
    if window and architecture == "olmo2":
        raise CheckpointError(f"{file.path}: attention.sliding_window of olmo2 (OLMo 3) is not supported")
    return {"sliding_window": window} if window else {}


def _gpt2(file: GGUFFile, turned: float) -> dict[str, Any]:
    """GPT-2's; nothing turns."""
    del turned
    return {
        "n_inner": file.required("feed_forward_length"),
        "layer_norm_epsilon": file.required_value("attention.layer_norm_epsilon"),
    }


def _gpt_neox(file: GGUFFile, turned: float) -> dict[str, Any]:
    """GPT-NeoX's; the header does not say the activation, and config.json's default is the authors'."""
    return {
        "layer_norm_eps": file.required_value("attention.layer_norm_epsilon"),
        "rotary_pct": turned,
        "rotary_emb_base": file.own("rope.freq_base", 10000.0),
        "use_parallel_residual": file.own("use_parallel_residual", True),
        "attention_bias": "blk.0.attn_qkv.bias" in file.tensors,
    }


def _phi2(file: GGUFFile, turned: float) -> dict[str, Any]:
    """Phi-1's and 2's."""
    return {
        "layer_norm_eps": file.required_value("attention.layer_norm_epsilon"),
        "partial_rotary_factor": turned,
        "rope_theta": file.own("rope.freq_base", 10000.0),
    }


# Those with layer norms: what config.json says of them, from the file and the share of a head that turns.
FIRST_MODELS = {"gpt2": _gpt2, "gptneox": _gpt_neox, "phi2": _phi2}


def _biases(file: GGUFFile) -> dict[str, Any]:
    """Which biases there are, where config.json says it."""
    found = {}
    if file.architecture in BIASED:
        found["attention_bias"] = "blk.0.attn_q.bias" in file.tensors
    if file.architecture in ("granite", "llama", "seed_oss"):
        found["mlp_bias"] = "blk.0.ffn_gate.bias" in file.tensors
    if file.architecture == "seed_oss":
        found["attention_out_bias"] = "blk.0.attn_output.bias" in file.tensors
    return found


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


def _granite(file: GGUFFile, head_dim: int) -> dict[str, Any]:
    """Its factors, each of which llama.cpp leaves out where the header does."""
    own = file.own
    return {
        "attention_multiplier": own("attention.scale", head_dim**-0.5),
        "embedding_multiplier": own("embedding_scale", 1.0),
        "residual_multiplier": own("residual_scale", 1.0),
        "logits_scaling": own("logit_scale", 1.0),
    }


def _rope(file: GGUFFile) -> dict[str, Any]:
    """Scaling of the rotary embedding, from the header and from tensors of factors."""
    own = file.own
    factor = own("rope.scaling.factor", own("rope.scale_linear"))  # the second in files of 2023
    kind = str(own("rope.scaling.type", "linear" if factor else "none"))
    original = own("rope.scaling.original_context_length")
    if "rope_factors_long.weight" in file.tensors:
        scaling = {
            "rope_type": "longrope",
            "long_factor": file.tensor("rope_factors_long.weight").tolist(),
            "short_factor": file.tensor("rope_factors_short.weight").tolist(),
            "attention_factor": own("rope.scaling.attn_factor"),
        }
        return {"rope_scaling": scaling, "original_max_position_embeddings": original}
    file.only("rope.scaling.attn_factor", 1.0)
    if "rope_freqs.weight" in file.tensors:
        # Llama 3's blend, worked out: divisors that hold for every length
        factors = file.tensor("rope_freqs.weight").tolist()
        scaling = {"rope_type": "longrope", "long_factor": factors, "short_factor": factors}
        return {"rope_scaling": scaling | {"attention_factor": 1.0}}
    if kind == "none":
        return {}
    if kind not in ("linear", "yarn"):
        raise CheckpointError(f"{file.path}: rope.scaling.type {kind!r} is not supported")
    scaling = {"rope_type": kind, "factor": factor}
    if kind == "yarn":
        scaling["original_max_position_embeddings"] = original
        for end in ("beta_fast", "beta_slow"):
            if own(f"rope.scaling.yarn_{end}"):
                scaling[end] = own(f"rope.scaling.yarn_{end}")
        for name in ("ext", "attn"):
            file.only(f"rope.scaling.yarn_{name}_factor", 1.0)
        scaling["truncate"] = file.architecture != "gpt-oss"  # as its authors have it; the header doesn't say
    return {"rope_scaling": scaling}
