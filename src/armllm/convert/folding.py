"""Where a product's inputs can be scaled without changing what a model computes.

x W^T = (x / s) (W diag(s))^T: the columns of W take s, and what makes x takes 1 / s: the weight of the norm
before it, or the rows of the matrix before it, if all that lies between is linear in each channel (AWQ, Lin
et al. 2023, section 3.2). Here is known what lies between in the families of `armllm.models`.
"""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from armllm.checkpoint.config import ModelConfig
    from armllm.checkpoint.tensors import Tensors

LAYER = re.compile(r"(.*\b(?:layers|h)\.\d+)\.")
# families whose layers are left alone, by a tensor that only they have
UNKNOWN = {"self_attention.query_key_value.weight": "Falcon", "layer_scalar": "Gemma 4"}
UNKNOWN |= {"altup.correct_output_scale": "Gemma 3n"}
UNKNOWN |= {"shared_mlp.input_linear.weight": "Granite 4"}
UNKNOWN |= {"mlp.gate.wg.weight": "Hunyuan's mixture of experts"}
UNKNOWN |= {"attn.c_attn.weight": "GPT-2", "attn.q_proj.weight": "GPT-J", "mlp.fc1.weight": "Phi or nanochat"}
UNKNOWN |= {"pre_ff_layernorm.weight": "Falcon-H1", "norm.weight": "Nemotron-H"}
UNKNOWN |= {"pre_mlp_layernorm.weight": "Trinity"}
UNKNOWN |= {"operator_norm.weight": "LFM2 or LFM3"}
UNKNOWN |= {"attention.query_key_value.weight": "GPT-NeoX"}
UNKNOWN |= {"attention.wqkv.weight": "InternLM2", "attn.attention.q_proj.weight": "EXAONE 3"}
UNKNOWN |= dict.fromkeys(("feed_forward.router.weight", "feed_forward.up_proj.weight"), "Llama 4")
GATES = ("gate_proj", "w1")
UPS = ("up_proj", "w3")
DOWNS = ("down_proj", "w2")
STACKED = re.compile(r"(mlp|block_sparse_moe)\.experts\.(gate_up|down)_proj(_blocks)?")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fold:
    """Products that share their inputs, and what makes those.

    ``matrices`` have the scales in their columns, ``seen`` names the one whose inputs are looked at.
    ``norm``: the inputs are a norm's, ``offset`` is what the model adds to its weight (1 for Gemma).
    ``rows_of``: they are the outputs ``first`` and on of a matrix; each serves ``heads_per_kv_head`` heads of
    ``head_dim`` inputs (grouped queries), 1 where inputs and outputs are the same.
    """

    matrices: tuple[str, ...]
    seen: str
    norm: str | None = None
    offset: float = 0.0
    rows_of: str | None = None
    first: int = 0
    heads_per_kv_head: int = 1
    head_dim: int = 1

    def __str__(self) -> str:
        return ", ".join(self.matrices[:3]) + (", ..." if len(self.matrices) > 3 else "")

    def shared(self, values: Tensor) -> Tensor:
        """``values[K]`` of the inputs, averaged (geometrically) over the heads that one output serves."""
        if self.heads_per_kv_head == 1:
            return values
        heads = values.log().view(-1, self.heads_per_kv_head, self.head_dim)
        return heads.mean(1, keepdim=True).expand_as(heads).reshape(-1).exp()

    def of_outputs(self, values: Tensor) -> Tensor:
        """``values[K]`` of the inputs as those of the outputs that they come from."""
        if self.heads_per_kv_head == 1:
            return values
        return values.view(-1, self.heads_per_kv_head, self.head_dim)[:, 0].reshape(-1)


@dataclasses.dataclass(kw_only=True)
class Folds:
    """``found``, and ``skipped``: matrices whose inputs can't be scaled, with the reason."""

    found: list[Fold]
    skipped: dict[str, str]


def find_folds(names: Collection[str], config: ModelConfig) -> Folds:
    """All of a checkpoint's, from the names of its tensors."""
    folds = Folds(found=[], skipped={})
    layers = dict.fromkeys(match[1] for name in sorted(names) if (match := LAYER.match(name)))
    for stem in layers:
        inside = {name[len(stem) + 1 :] for name in names if name.startswith(f"{stem}.")}
        _Layer(stem, inside, config, folds).find()
    return folds


class _Layer:
    """One decoder layer: its stem, and the names of its tensors below that."""

    def __init__(self, stem: str, names: set[str], config: Any, folds: Folds) -> None:
        self.stem, self.names, self.config, self.folds = stem, names, config, folds

    def find(self) -> None:
        unknown = next((family for mark, family in UNKNOWN.items() if mark in self.names), None)
        if unknown is not None:
            for name in sorted(self.names):
                if (
                    not name.endswith(("bias", "scale", "scalar", "A_log", ".D"))
                    and "ln_" not in name
                    and "norm" not in name
                ):
                    self.skip(name.removesuffix(".weight"), f"calibration does not know {unknown}'s layers")
            return
        if self.has("self_attn.kv_a_proj_with_mqa"):
            self.latent_attention()
        elif self.has("linear_attn.out_proj"):
            self.delta_net()
        else:
            self.attention()
        if self.has("fc1"):
            self.from_norm("final_layer_norm", ["fc1"], [])
            self.plain("fc1", "fc2")
        elif self.has("mlp.c_fc"):
            self.from_norm("post_attention_layernorm", ["mlp.c_fc"], [])
            self.plain("mlp.c_fc", "mlp.c_proj")
        elif self.has("mlp.up_proj") and not self.has("mlp.gate_proj"):
            norm = (
                "feedforward_layernorm" if self.has("feedforward_layernorm") else "post_attention_layernorm"
            )
            self.from_norm(norm, ["mlp.up_proj"], [])
            self.plain("mlp.up_proj", "mlp.down_proj")
        elif self.parallel:
            self.gated("mlp")
        else:
            self.feed_forward()

    @property
    def parallel(self) -> bool:
        """Whether both branches read the same norm."""
        return getattr(self.config, "parallel", False)

    def attention(self) -> None:
        """Query, key and value, beside them gate and up where the branches are parallel, and the output."""
        queries = self.there("self_attn", ("q_proj", "k_proj", "v_proj"), ("qkv_proj",))
        beside = self.gates_and_ups("mlp") if self.parallel else []
        norm = "attention_layernorm" if self.has("attention_layernorm") else "input_layernorm"  # Apertus'
        norm = "self_attn_layer_norm" if self.has("fc1") else norm  # OPT's
        self.from_norm(norm, queries + beside, [])
        self.attention_output(queries)

    def latent_attention(self) -> None:
        """DeepSeek's: matrices behind the norms of the latent vectors are scaled, too."""
        latent = self.has("self_attn.q_a_proj")
        query = "self_attn.q_a_proj" if latent else "self_attn.q_proj"
        indexer = "self_attn.indexer"  # DeepSeek V3.2's, which is not computed here, but written
        inputs = [f"{indexer}.{name}" for name in ("wk", "weights_proj") if self.has(f"{indexer}.{name}")]
        self.from_norm("input_layernorm", [query, "self_attn.kv_a_proj_with_mqa"], inputs)
        if latent:
            queries = [f"{indexer}.wq_b"] if self.has(f"{indexer}.wq_b") else []
            self.from_norm("self_attn.q_a_layernorm", ["self_attn.q_b_proj"], queries)
        self.from_norm("self_attn.kv_a_layernorm", ["self_attn.kv_b_proj"], [])
        self.skip("self_attn.o_proj", "its inputs are expanded from a latent vector")

    def delta_net(self) -> None:
        """Qwen's gated delta net."""
        names = ("in_proj_qkvz", "in_proj_qkv", "in_proj_z", "in_proj_ba", "in_proj_b", "in_proj_a")
        inputs = [f"linear_attn.{name}" for name in names if self.has(f"linear_attn.{name}")]
        self.from_norm("input_layernorm", inputs, [])
        self.skip("linear_attn.out_proj", "a norm that all heads share lies before it")

    def feed_forward(self) -> None:
        """Gate, up and down, or experts."""
        around = "post_feedforward_layernorm.weight" in self.names  # Gemma; OLMo 2 has none before
        before = self.has("pre_feedforward_layernorm")  # VaultGemma has none after
        norm = "pre_feedforward_layernorm" if around or before else "post_attention_layernorm"
        scope = next((s for s in ("block_sparse_moe", "mlp") if self.has(f"{s}.gate")), None)
        if self.has("block_sparse_moe.input_linear"):  # Granite
            for name in ("input_linear", "output_linear"):
                self.skip(f"block_sparse_moe.{name}", "its experts are in one tensor")
        elif stacked := [name for name in sorted(self.names) if STACKED.fullmatch(name)]:
            for name in stacked:
                self.skip(name.removesuffix("_blocks"), "its experts are in one tensor")
        elif scope is None:
            self.from_norm(norm, self.gates_and_ups("mlp"), [])
            self.gated("mlp")
        else:
            self.mixture(norm, scope)

    def mixture(self, norm: str, scope: str) -> None:
        """Experts, which share their inputs with the router and a shared expert."""
        pattern = re.compile(rf"{scope}\.experts\.\d+(?=\.)")
        experts = sorted({found[0] for name in self.names if (found := pattern.match(name))})
        names = (f"{scope}.shared_expert", f"{scope}.shared_experts")
        shared = [name for name in names if self.has(f"{name}.down_proj")]
        matrices = [matrix for mlp in experts + shared for matrix in self.gates_and_ups(mlp)]
        others = [f"{scope}.{gate}" for gate in ("gate", "shared_expert_gate") if self.has(f"{scope}.{gate}")]
        bias = "e_score_correction_bias"  # MiniMax has it beside the router
        biased = not self.names.isdisjoint((f"{scope}.gate.{bias}", f"{scope}.{bias}"))
        self.from_norm(norm, matrices, others, seen=matrices[-1] if biased else f"{scope}.gate")
        for mlp in shared:
            self.gated(mlp)
        for mlp in experts:
            down = next(f"{mlp}.{name}" for name in DOWNS if self.has(f"{mlp}.{name}"))
            self.skip(down, "an expert sees too little of a calibration text")

    def from_norm(self, norm: str, matrices: list[str], others: list[str], seen: str | None = None) -> None:
        """Inputs that a norm makes."""
        if not getattr(self.config, "norm_first", True):
            reason = "its norm comes after the sum (do_layer_norm_before is false)"
        elif f"{norm}.weight" not in self.names:
            reason = f"{norm} has no weight"
        else:
            full = tuple(f"{self.stem}.{name}" for name in matrices + others)
            self.folds.found.append(
                Fold(
                    matrices=full,
                    seen=f"{self.stem}.{seen}" if seen else full[0],
                    norm=f"{self.stem}.{norm}",
                    offset=getattr(self.config, "norm_offset", 0.0),
                )
            )
            return
        for name in matrices:
            self.skip(name, reason)

    def attention_output(self, queries: list[str]) -> None:
        """Inputs that are weighted sums of values."""
        output = next(name for name in ("self_attn.o_proj", "self_attn.out_proj") if self.has(name))
        if getattr(self.config, "clip_qkv", None) is not None:
            self.skip(output, "values are clipped (clip_qkv)")
            return
        config = self.config
        fused = len(queries) == 1
        first = (config.num_heads + config.num_kv_heads) * config.head_dim if fused else 0
        self.from_rows(
            output,
            queries[-1],
            first,
            heads_per_kv_head=config.num_heads // config.num_kv_heads,
            head_dim=config.head_dim,
        )

    def plain(self, up: str, down: str) -> None:
        """act(up): linear in each channel only if it is relu."""
        if self.config.activation == "relu":  # relu(x / s) = relu(x) / s
            self.from_rows(down, up, 0)
        else:
            self.skip(down, f"{self.config.activation} lies before it")

    def gated(self, mlp: str) -> None:
        """act(gate) * up: linear in up."""
        fused = self.has(f"{mlp}.gate_up_proj")
        up = f"{mlp}.gate_up_proj" if fused else next(f"{mlp}.{n}" for n in UPS if self.has(f"{mlp}.{n}"))
        down = next(f"{mlp}.{name}" for name in DOWNS if self.has(f"{mlp}.{name}"))
        self.from_rows(down, up, self.config.intermediate_size if fused else 0)

    def from_rows(
        self, matrix: str, source: str, first: int, *, heads_per_kv_head: int = 1, head_dim: int = 1
    ) -> None:
        """Inputs that are rows of another product."""
        full = f"{self.stem}.{matrix}"
        self.folds.found.append(
            Fold(
                matrices=(full,),
                seen=full,
                rows_of=f"{self.stem}.{source}",
                first=first,
                heads_per_kv_head=heads_per_kv_head,
                head_dim=head_dim,
            )
        )

    def gates_and_ups(self, mlp: str) -> list[str]:
        return self.there(mlp, *((gate, up) for gate, up in zip(GATES, UPS, strict=True)), ("gate_up_proj",))

    def there(self, scope: str, *alternatives: tuple[str, ...]) -> list[str]:
        """The first choice whose matrices the checkpoint has."""
        for names in alternatives:
            if self.has(f"{scope}.{names[0]}"):
                return [f"{scope}.{name}" for name in names]
        raise KeyError(f"{self.stem}.{scope} has none of {alternatives}")

    def has(self, name: str) -> bool:
        return f"{name}.weight" in self.names

    def skip(self, name: str, reason: str) -> None:
        self.folds.skipped[f"{self.stem}.{name}"] = reason


class ScaledCheckpoint:
    """A checkpoint with scales folded in; stands in for it. Tensors keep their dtypes."""

    def __init__(self, checkpoint: Tensors) -> None:
        self.checkpoint = checkpoint
        self.folder = checkpoint.folder
        self._columns: dict[str, Tensor] = {}
        self._rows: dict[str, Tensor] = {}
        self._norms: dict[str, Tensor] = {}

    def fold(self, fold: Fold, scales: Tensor) -> None:
        """Divide the inputs of ``fold`` by ``scales[K]`` (fp32, positive)."""
        if fold.norm is not None:
            scales = self._fold_norm(fold.norm, fold.offset, scales)
        elif fold.rows_of is not None:
            rows = self.describe(f"{fold.rows_of}.weight")[1][0]
            factors = torch.ones(rows)
            outputs = fold.of_outputs(scales)
            factors[fold.first : fold.first + len(outputs)] = 1 / outputs
            self._rows[fold.rows_of] = factors
        for name in fold.matrices:
            self._columns[name] = scales

    def _fold_norm(self, name: str, offset: float, scales: Tensor) -> Tensor:
        """What the norm's outputs are divided by once its weight is rounded to its dtype."""
        weight = self.checkpoint.read(f"{name}.weight")
        exact = weight.float() + offset
        scaled = (exact / scales - offset).to(weight.dtype)
        now = scaled.float() + offset
        scales = torch.where((exact != 0) & (now / exact > 0), exact / now, scales)
        self._norms[f"{name}.weight"] = scaled
        if f"{name}.bias" in self.names():
            bias = self.checkpoint.read(f"{name}.bias")
            self._norms[f"{name}.bias"] = (bias.float() / scales).to(bias.dtype)
        return scales

    def names(self) -> set[str]:
        """All tensors."""
        return self.checkpoint.names()

    def describe(self, name: str) -> tuple[str, tuple[int, ...]]:
        """A tensor's dtype, as safetensors writes it, and shape."""
        return self.checkpoint.describe(name)

    def where(self, name: str) -> Path:
        """The file that holds a tensor."""
        return self.checkpoint.where(name)

    def read(self, name: str) -> Tensor:
        """A tensor, scaled; mapped from its file where nothing was folded into it."""
        if name in self._norms:
            return self._norms[name]
        stored = self.checkpoint.read(name)
        stem, _, kind = name.rpartition(".")
        rows = self._rows.get(stem) if kind in ("weight", "bias") else None
        columns = self._columns.get(stem) if kind == "weight" else None
        if rows is None and columns is None:
            return stored
        scaled = stored.float() if columns is None else stored.float() * columns
        if rows is not None:
            scaled = scaled * (rows if scaled.ndim == 1 else rows.unsqueeze(1))  # never where it is mapped
        return scaled.to(stored.dtype)
