"""The smoke model as a differentiable function, with the rounding it must survive and the faults it must not.

`Conditions` says how one forward pass differs from exact arithmetic: weights and activations rounded as int8
and int4 kernels round them, bf16 storage, an int8 KV cache, random noise, or one wrong kernel. The network is
Llama (Touvron et al., 2023) with grouped-query heads and rotary embedding in NeoX order, or Mixtral (Jiang et
al., 2024), which has experts besides, in plain torch.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Callable

Weights = dict[str, Tensor]
TAIL = 8  # elements that a loop forgets at its end: the least that a vector of Arm's holds of 16 bits


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shape:
    """Sizes of the network; int4 groups of 128 fit into every input of a linear layer.

    With ``num_experts`` ``intermediate_size`` is that of an expert, and ``per_token`` are chosen.
    """

    vocab_size: int = 768
    hidden_size: int = 128
    intermediate_size: int = 384
    num_layers: int = 3
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 32
    rope_theta: float = 500.0  # every pair turns far enough within the context to matter
    rms_norm_eps: float = 0.05
    num_experts: int = 0
    per_token: int = 2


MIXTURE = Shape(vocab_size=384, intermediate_size=64, num_layers=2, num_experts=6)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Conditions:
    """One way of running the network.

    ``weight_bits`` 0 leaves weights alone; ``group_size`` 0 is one scale per output channel; ``grid`` is the
    steps between zero and the largest weight in units of 2**(bits-1) - 1, since packing schemes differ.
    ``weight_noise`` and ``activation_noise`` are standard deviations relative to a row's root mean square.

    ``fault`` is one of `FAULTS`. It may hit one KV ``block``; or the prompt, ``prefill`` tokens long, where a
    mask that sees the next token can do so.
    """

    weight_bits: int = 0
    group_size: int = 0
    grid: float = 1.0
    activation_bits: int = 0
    kv_bits: int = 0
    quantize_head: bool = False
    bfloat16: bool = False
    weight_noise: float = 0.0
    activation_noise: float = 0.0
    fault: str = ""
    block: int = 0
    block_size: int = 16
    prefill: int = 8


def straight_through(exact: Tensor, rounded: Tensor) -> Tensor:
    """The rounded value forward, the exact value's gradient backward (Bengio et al., 2013)."""
    return exact + (rounded - exact).detach()


def quantize(values: Tensor, bits: int, group_size: int = 0, grid: float = 1.0) -> Tensor:
    """Symmetric rounding of the last dimension in groups (0: the whole of it), returned as floats."""
    steps = (2 ** (bits - 1) - 1) * grid
    grouped = values.reshape(*values.shape[:-1], -1, group_size or values.shape[-1])
    scale = grouped.abs().amax(-1, keepdim=True).clamp_min(1e-12) / steps
    rounded: Tensor = (grouped / scale).round().clamp(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) * scale
    return rounded.reshape(values.shape)


def root_mean_square(values: Tensor) -> Tensor:
    return values.square().mean(-1, keepdim=True).sqrt()


def round_weight(weight: Tensor, conditions: Conditions) -> Tensor:
    """The weight as a kernel under ``conditions`` would hold it, differentiable."""
    rounded = weight.detach()
    if conditions.weight_noise:
        spread = root_mean_square(rounded) * conditions.weight_noise
        rounded = rounded + torch.randn_like(rounded) * spread
    if conditions.weight_bits:
        rounded = quantize(rounded, conditions.weight_bits, conditions.group_size, conditions.grid)
    if conditions.bfloat16:
        rounded = rounded.bfloat16().float()
    return straight_through(weight, rounded)


def store(values: Tensor, conditions: Conditions) -> Tensor:
    """What an activation looks like after a kernel has written it to memory."""
    if conditions.activation_noise:
        spread = root_mean_square(values.detach()) * conditions.activation_noise
        values = values + torch.randn_like(values) * spread
    return straight_through(values, values.detach().bfloat16().float()) if conditions.bfloat16 else values


def linear(x: Tensor, weight: Tensor, conditions: Conditions) -> Tensor:
    if conditions.activation_bits:
        x = straight_through(x, quantize(x.detach(), conditions.activation_bits))
    return store(functional.linear(x, round_weight(weight, conditions)), conditions)


def rms_norm(x: Tensor, weight: Tensor, eps: float, conditions: Conditions) -> Tensor:
    fault = conditions.fault
    if fault == "norm_without_weight":
        weight = torch.ones_like(weight)
    if fault == "norm_subtracts_mean":
        x = x - x.mean(-1, keepdim=True)
    power = x.square()
    if fault == "norm_takes_variance":
        power = (x - x.mean(-1, keepdim=True)).square()
    if fault == "norm_skips_tail":
        power = power[..., :-TAIL].sum(-1, keepdim=True) / x.shape[-1]
    elif fault == "norm_sums":
        power = power.sum(-1, keepdim=True)
    else:
        power = power.mean(-1, keepdim=True)
    if fault == "norm_without_eps":
        eps = 1e-6
    if fault == "norm_adds_eps_after_root":
        return store(x / (power.sqrt() + eps) * weight, conditions)
    return store(x * torch.rsqrt(power + eps) * weight, conditions)


def rotary_angles(length: int, shape: Shape) -> Tensor:
    frequencies = shape.rope_theta ** (-torch.arange(0, shape.head_dim, 2) / shape.head_dim)
    return torch.outer(torch.arange(length).float(), frequencies)


def rotate(x: Tensor, angles: Tensor, fault: str) -> Tensor:
    """Rotary embedding (Su et al., 2021) of x [batch, heads, length, head_dim]."""
    if fault == "rotary_missing":
        return x
    sine, cosine = angles.sin(), angles.cos()
    if fault == "rotary_half":
        half = torch.arange(angles.shape[-1]) < angles.shape[-1] // 2
        sine, cosine = sine * half, torch.where(half, cosine, 1.0)
    if fault == "rotary_interleaved":
        even, odd = x[..., 0::2], x[..., 1::2]
        return torch.stack((even * cosine - odd * sine, odd * cosine + even * sine), -1).flatten(-2)
    first, second = x.chunk(2, -1)
    if fault == "rotary_sign":
        return torch.cat((first * cosine + second * sine, second * cosine + first * sine), -1)
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), -1)


def visible_keys(length: int, conditions: Conditions) -> Tensor:
    """[length, length]: which keys each query may see."""
    fault, size = conditions.fault, conditions.block_size
    query, key = torch.arange(length)[:, None], torch.arange(length)[None, :]
    visible = key <= query
    if fault == "mask_excludes_self":
        visible = (key < query) | (query == 0) & (key == 0)
    elif fault == "mask_sees_next":
        visible = key <= query + (query < conditions.prefill - 1)
    elif fault == "block_dropped":
        visible &= (key // size != conditions.block) | (query // size == conditions.block)
    elif fault == "first_token_dropped":
        visible &= (key > 0) | (query == 0)
    elif fault == "last_full_block_dropped":
        visible &= key // size != query // size - 1
    elif fault == "block_ends_dropped":
        visible &= (key % size != size - 1) | (key == query)
    elif fault == "window_of_128":
        visible &= query - key < 128
    return visible


def attention(q: Tensor, k: Tensor, v: Tensor, conditions: Conditions) -> Tensor:
    """Causal grouped-query attention of q [batch, heads, length, head_dim]; k and v have fewer heads."""
    fault = conditions.fault
    if conditions.kv_bits:
        k = straight_through(k, quantize(k.detach(), conditions.kv_bits))
        v = straight_through(v, quantize(v.detach(), conditions.kv_bits))
    if fault == "value_of_previous_token":
        v = torch.cat((v[..., :1, :], v[..., :-1, :]), -2)
    if fault == "block_replaced":
        positions = torch.arange(k.shape[-2])
        late = (positions // conditions.block_size == conditions.block) * conditions.block_size
        k, v = k[..., positions - late, :], v[..., positions - late, :]
    group = q.shape[1] // k.shape[1]
    heads = torch.arange(q.shape[1])
    heads = heads % k.shape[1] if fault == "kv_heads_modulo" else heads // group
    scale = {"scale_missing": 1.0, "scale_squared": 1 / q.shape[-1]}.get(fault, 1 / math.sqrt(q.shape[-1]))
    if fault == "scores_skip_tail":
        q = q * (torch.arange(q.shape[-1]) < q.shape[-1] - TAIL)
    scores = q @ k[:, heads].transpose(-1, -2) * scale
    scores = scores.masked_fill(~visible_keys(q.shape[-2], conditions), -math.inf)
    if fault == "zero_key_added":
        scores, v = functional.pad(scores, (0, 1)), functional.pad(v, (0, 0, 0, 1))
    if fault == "softmax_in_base_two":
        scores = scores * math.log(2)
    if fault == "softmax_never_rescaled":
        length, size = scores.shape[-1], conditions.block_size
        ends = ((torch.arange(length) // size + 1) * size - 1).clamp(max=length - 1)
        scores = scores - scores.cummax(-1).values[..., ends]  # the highest so far, block by block
    out = scores.softmax(-1) @ v[:, heads]
    if fault == "values_skip_tail":
        out = out * (torch.arange(q.shape[-1]) < q.shape[-1] - TAIL)
    if fault == "last_head_missing":
        out = out * (torch.arange(q.shape[1]) < q.shape[1] - 1)[:, None, None]
    return store(out, conditions)


def gated(gate: Tensor, up: Tensor, conditions: Conditions) -> Tensor:
    """SwiGLU (Shazeer, 2020): silu(gate) * up."""
    variants: dict[str, Callable[[], Tensor]] = {
        "gate_and_up_swapped": lambda: functional.silu(up) * gate,
        "gate_is_gelu": lambda: functional.gelu(gate) * up,
        "gate_is_sigmoid": lambda: gate.sigmoid() * up,
        "gate_is_relu": lambda: gate.relu() * up,
        "gate_skips_tail": lambda: (
            functional.silu(gate) * up * (torch.arange(up.shape[-1]) < up.shape[-1] - TAIL)
        ),
    }
    return store(variants.get(conditions.fault, lambda: functional.silu(gate) * up)(), conditions)


def feed_forward(x: Tensor, weights: Weights, names: tuple[str, str, str], conditions: Conditions) -> Tensor:
    """down(silu(gate(x)) * up(x)); ``names`` are those of gate, up and down."""
    gate, up = (linear(x, weights[name], conditions) for name in names[:2])
    return linear(gated(gate, up, conditions), weights[names[2]], conditions)


def route(x: Tensor, gate: Tensor, shape: Shape, conditions: Conditions) -> Tensor:
    """How much of each expert a token gets, [..., num_experts]: the softmax of the largest few logits."""
    exact = dataclasses.replace(conditions, weight_bits=0, activation_bits=0)
    logits, experts = linear(x, gate, exact).topk(shape.per_token, -1)
    shares = logits.softmax(-1)
    fault = conditions.fault
    if fault == "expert_weights_swapped":
        shares = shares.flip(-1)
    elif fault == "expert_weights_equal":
        shares = torch.full_like(shares, 1 / shape.per_token)
    elif fault == "last_expert_missing":
        shares = shares * (torch.arange(shape.per_token) < shape.per_token - 1)
    elif fault == "experts_shifted":
        experts = (experts + 1) % shape.num_experts
    elif fault == "expert_weights_missing":
        shares = torch.ones_like(shares)
    return torch.zeros(*x.shape[:-1], shape.num_experts).scatter(-1, experts, shares)


def mixture(x: Tensor, weights: Weights, shape: Shape, conditions: Conditions) -> Tensor:
    """The sum of the chosen experts, each weighted; all experts are computed for all tokens."""
    shares = route(x, weights["block_sparse_moe.gate.weight"], shape, conditions)
    total = torch.zeros_like(x)
    for expert in range(shape.num_experts):
        prefix = f"block_sparse_moe.experts.{expert}"
        names = (f"{prefix}.w1.weight", f"{prefix}.w3.weight", f"{prefix}.w2.weight")
        total = total + shares[..., expert, None] * feed_forward(x, weights, names, conditions)
    return store(total, conditions)


# Faults the model is trained to betray, and faults it has never met, which show that this generalizes.
TRAINED_FAULTS = (
    "block_dropped", "first_token_dropped", "gate_and_up_swapped", "gate_is_gelu", "gate_skips_tail",
    "kv_heads_modulo", "mask_excludes_self", "mask_sees_next", "norm_adds_eps_after_root", "norm_skips_tail",
    "norm_subtracts_mean", "norm_takes_variance", "norm_without_eps", "norm_without_weight", "residual_stale",
    "rotary_half", "rotary_interleaved", "rotary_missing", "rotary_query_late", "scale_missing",
    "value_of_previous_token", "zero_key_added",
)  # fmt: skip
UNSEEN_FAULTS = (
    "block_ends_dropped", "block_replaced", "gate_is_relu", "gate_is_sigmoid", "last_full_block_dropped",
    "last_head_missing", "norm_sums", "rotary_sign", "scale_squared", "scores_skip_tail",
    "softmax_in_base_two", "softmax_never_rescaled", "values_skip_tail", "window_of_128",
)  # fmt: skip
# A mixture of experts is there for its own kernels; the rest of the network Llama proves.
MIXTURE_TRAINED_FAULTS = (
    "expert_weights_equal", "expert_weights_swapped", "gate_and_up_swapped", "gate_is_gelu",
    "gate_skips_tail", "last_expert_missing",
)  # fmt: skip
MIXTURE_UNSEEN_FAULTS = (
    "expert_weights_missing", "experts_shifted", "gate_is_relu", "gate_is_sigmoid", "rotary_missing",
    "value_of_previous_token",
)  # fmt: skip


def faults(shape: Shape) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Those that a network of this shape is trained to betray, and those that it never meets."""
    if shape.num_experts:
        return MIXTURE_TRAINED_FAULTS, MIXTURE_UNSEEN_FAULTS
    return TRAINED_FAULTS, UNSEEN_FAULTS


def forward(ids: Tensor, weights: Weights, shape: Shape, conditions: Conditions) -> Tensor:
    """Logits [batch, length, vocab_size] of token ids [batch, length] under ``conditions``."""
    batch, length = ids.shape
    head = dataclasses.replace(
        conditions, weight_bits=conditions.weight_bits if conditions.quantize_head else 0
    )
    embedding = round_weight(weights["model.embed_tokens.weight"], head)
    angles = rotary_angles(length + 1, shape)
    late = int(conditions.fault == "rotary_query_late")
    hidden = store(embedding[ids], conditions)
    for layer in range(shape.num_layers):
        weight = {
            name.removeprefix(f"model.layers.{layer}."): value
            for name, value in weights.items()
            if name.startswith(f"model.layers.{layer}.")
        }

        def project(name: str, heads: int, x: Tensor, weight: Weights = weight) -> Tensor:
            y = linear(x, weight[f"self_attn.{name}_proj.weight"], conditions)
            return y.view(batch, length, heads, shape.head_dim).transpose(1, 2)

        x = rms_norm(hidden, weight["input_layernorm.weight"], shape.rms_norm_eps, conditions)
        q = rotate(project("q", shape.num_heads, x), angles[late : late + length], conditions.fault)
        k = rotate(project("k", shape.num_kv_heads, x), angles[:length], conditions.fault)
        mixed = attention(q, k, project("v", shape.num_kv_heads, x), conditions)
        mixed = linear(mixed.transpose(1, 2).flatten(2), weight["self_attn.o_proj.weight"], conditions)
        before = hidden
        hidden = store(hidden + mixed, conditions)
        post_norm = weight["post_attention_layernorm.weight"]
        x = rms_norm(hidden, post_norm, shape.rms_norm_eps, conditions)
        if conditions.fault == "residual_stale":
            hidden = before
        if shape.num_experts:
            down = mixture(x, weight, shape, conditions)
        else:
            names = ("mlp.gate_proj.weight", "mlp.up_proj.weight", "mlp.down_proj.weight")
            down = feed_forward(x, weight, names, conditions)
        hidden = store(hidden + down, conditions)
    hidden = rms_norm(hidden, weights["model.norm.weight"], shape.rms_norm_eps, conditions)
    if head.weight_bits and conditions.activation_bits:
        hidden = straight_through(hidden, quantize(hidden.detach(), conditions.activation_bits))
    return functional.linear(hidden, embedding)


def initial_weights(shape: Shape, generator: torch.Generator) -> Weights:
    """Fresh float32 parameters under their Hugging Face names, linear ones with variance 1 / inputs."""
    heads, kv_heads = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    hidden, inner = shape.hidden_size, shape.intermediate_size
    sizes = {
        "self_attn.q_proj": (heads, hidden),
        "self_attn.k_proj": (kv_heads, hidden),
        "self_attn.v_proj": (kv_heads, hidden),
        "self_attn.o_proj": (hidden, heads),
    }
    for expert in range(shape.num_experts):
        prefix = f"block_sparse_moe.experts.{expert}"
        sizes |= {f"{prefix}.w1": (inner, hidden), f"{prefix}.w3": (inner, hidden)}
        sizes |= {f"{prefix}.w2": (hidden, inner)}
    if shape.num_experts:
        sizes["block_sparse_moe.gate"] = (shape.num_experts, hidden)
    else:
        sizes |= {"mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden)}
        sizes |= {"mlp.down_proj": (hidden, inner)}
    weights = {"model.embed_tokens.weight": torch.randn(shape.vocab_size, hidden, generator=generator) * 0.25}
    for layer in range(shape.num_layers):
        for name, size in sizes.items():
            value = torch.randn(size, generator=generator) / math.sqrt(size[1])
            weights[f"model.layers.{layer}.{name}.weight"] = value
        for name in ("input_layernorm", "post_attention_layernorm"):
            weights[f"model.layers.{layer}.{name}.weight"] = torch.ones(hidden)
    weights["model.norm.weight"] = torch.ones(hidden)
    return weights
