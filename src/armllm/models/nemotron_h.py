"""Nemotron-H, Nemotron 3 (NVIDIA 2025): a layer is Mamba 2, attention, experts or a feed-forward part."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from armllm.checkpoint.config import MAX_LAYERS
from armllm.layers.activation import PLAIN, plain
from armllm.layers.embedding import gather
from armllm.layers.linear import load_linear
from armllm.layers.mlp import PlainMLP
from armllm.layers.moe import load_plain_experts
from armllm.layers.recurrent import check_recurrence
from armllm.layers.rotary import RopeParameters
from armllm.layers.routing import GroupedRouter
from armllm.models.glm4_moe import read_routing
from armllm.models.llama import LlamaAttention, LlamaDecoderLayer, LlamaForCausalLM, add_and_normalize
from armllm.models.mamba import Mamba, MambaConfig, only_free_steps
from armllm.models.windows import FULL, LINEAR

if TYPE_CHECKING:
    from torch import Tensor

    from armllm.checkpoint.config import ConfigReader
    from armllm.checkpoint.weights import Weights
    from armllm.layers.attention import AttentionMetadata
    from armllm.layers.rotary import RotaryEmbedding
    from armllm.layers.routing import Routing
    from armllm.models.llama import Mixer

EXPERTS, DENSE = "moe", "mlp"
# as NVIDIA's files call the kinds, and as transformers 5 does
KINDS = {"mamba": LINEAR, "attention": FULL, **{kind: kind for kind in (LINEAR, FULL, EXPERTS, DENSE)}}
LETTERS = {"M": LINEAR, "*": FULL, "E": EXPERTS, "-": DENSE}
DEFAULT_KINDS = [LINEAR, EXPERTS, FULL, DENSE]


@dataclasses.dataclass(frozen=True, kw_only=True)
class NemotronHConfig(MambaConfig):
    """kinds: of each layer. latent_size: of what experts see, None: the hidden states themselves."""

    kinds: tuple[str, ...]
    routing: Routing
    num_experts_per_tok: int
    moe_intermediate_size: int
    shared_size: int
    latent_size: int | None


class NemotronHMoE:
    """back(experts(there(x))) + shared(x): experts without gates, maybe of a smaller vector."""

    def __init__(self, config: NemotronHConfig, weights: Weights) -> None:
        hidden_size, latent_size, bias = config.hidden_size, config.latent_size, config.mlp_bias
        self.router = GroupedRouter(weights.scope("gate"), hidden_size, config.routing)
        self.there = self.back = None
        if latent_size is not None:
            self.there = load_linear(weights, {"fc1_latent_proj": latent_size}, hidden_size, bias=bias)
            self.back = load_linear(weights, {"fc2_latent_proj": hidden_size}, latent_size, bias=bias)
        self.experts = load_plain_experts(
            weights,
            config.routing.num_experts,
            latent_size or hidden_size,
            config.moe_intermediate_size,
            activation=config.activation,
        )
        self.shared = _feed_forward(config, weights.scope("shared_experts"), config.shared_size)

    def __call__(self, x: Tensor) -> Tensor:
        """``x[T, hidden_size]`` to the same shape."""
        seen = x if self.there is None else self.there(x)
        found = self.experts(seen, *self.router(x))
        return (found if self.back is None else self.back(found)).add_(self.shared(x))


class NemotronHDecoderLayer(LlamaDecoderLayer):
    """x + mixer(norm(x)): a layer has one branch."""

    self_attn: Mixer | None  # type: ignore[assignment]

    def __init__(
        self, config: NemotronHConfig, weights: Weights, rotary: RotaryEmbedding | None, index: int
    ) -> None:
        del rotary  # no layer knows positions
        self.norm = self.load_norm(config, weights, "norm")
        mixer, kind = weights.scope("mixer"), config.kinds[index]
        self.self_attn, self.mlp = None, None  # type: ignore[assignment]
        if kind == LINEAR:
            self.self_attn = Mamba(config, mixer)
        elif kind == FULL:
            self.self_attn = LlamaAttention(config, mixer, None, index)
        elif kind == EXPERTS:
            self.mlp = NemotronHMoE(config, mixer)
        else:
            self.mlp = _feed_forward(config, mixer, config.intermediate_size)

    @property
    def mixers(self) -> tuple[Mixer, ...]:
        """None in a layer that sees one token at a time."""
        return () if self.self_attn is None else (self.self_attn,)

    def __call__(
        self,
        x: Tensor,
        residual: Tensor | None,
        places: Tensor,
        metadata: AttentionMetadata,
        rows: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """The branch and the sum so far, as in Llama."""
        x, residual = add_and_normalize(self.norm, x, residual)
        if rows is not None:
            residual = gather(residual, rows)
        if self.self_attn is not None:
            return self.self_attn(x, places, metadata, rows), residual
        return self.mlp(x if rows is None else gather(x, rows)), residual


class NemotronHForCausalLM(LlamaForCausalLM):
    """Llama's decoder with these layers."""

    layer_class = NemotronHDecoderLayer
    names = ("embeddings", "layers", "norm_f")
    ignored = (*LlamaForCausalLM.ignored, "mtp.*")  # layers that predict further tokens

    @staticmethod
    def decoder_weights(weights: Weights) -> Weights:
        """All but the head; NVIDIA's files call it backbone."""
        backbone = weights.scope("backbone", optional=True)
        return weights.scope("model", optional=True) if backbone is weights else backbone

    def __init__(self, config: NemotronHConfig, weights: Weights, *, max_positions: int) -> None:
        super().__init__(config, weights, max_positions=max_positions)
        self.rotaries = []

    @staticmethod
    def load_rotary(config: Any, max_positions: int) -> Any:  # noqa: ARG004
        """None."""
        return None

    def places(self, positions: Tensor, total_lens: Tensor) -> Tensor:  # noqa: ARG002 - of no effect
        """No layer looks at them."""
        return positions

    @staticmethod
    def read_config(reader: ConfigReader) -> NemotronHConfig:
        """The config.json of Nemotron-H and Nemotron 3; its class knows no other attention than this."""
        for name in ("attention_bias", "mamba_proj_bias", "residual_in_fp32"):
            reader.only(name, False)
        reader.only("sliding_window", None)
        reader.only("n_shared_experts", 1)
        for name in ("rope_theta", "partial_rotary_factor", "rescale_prenorm_residual"):
            reader.has(name)  # the first two in files of NVIDIA, the last is about training
        kinds = _kinds(reader)
        reader.only("num_hidden_layers", len(kinds))
        common = reader.changed(num_hidden_layers=len(kinds)).common(
            "NemotronHForCausalLM",
            default_eos=2,
            default_positions=4096,
            default_heads=32,
            default_kv_heads=8,
            default_head_dim=128,
            default_sizes={"hidden_size": 4096, "vocab_size": 131072},
        )
        reader.only("attention_head_dim", common["head_dim"])
        routing = read_routing(reader, num_experts=8, per_token=2, groups=(1, 1), factor=1.0, sigmoid=True)
        return NemotronHConfig(
            **common,
            **_mamba_fields(reader),
            windows=(None,) * len(kinds),
            is_recurrent=LINEAR in kinds,
            kinds=kinds,
            rope=RopeParameters(rotary_dim=0),
            intermediate_size=reader.integer("intermediate_size", 21504),
            activation=reader.choice("mlp_hidden_act", "relu2", PLAIN),
            rms_norm_eps=reader.number("layer_norm_epsilon", 1e-5),
            mlp_bias=reader.boolean("mlp_bias", default=False),
            routing=routing,
            num_experts_per_tok=routing.num_experts_per_tok,
            moe_intermediate_size=reader.integer("moe_intermediate_size", 7688),
            shared_size=reader.integer("moe_shared_expert_intermediate_size", 7688),
            latent_size=reader.optional_integer("moe_latent_size", None),
        )


def _feed_forward(config: NemotronHConfig, weights: Weights, size: int) -> PlainMLP:
    return PlainMLP(
        weights,
        config.hidden_size,
        size,
        activation=plain(config.activation),
        bias=config.mlp_bias,
        names=("up_proj", "down_proj"),
    )


def _kinds(reader: ConfigReader) -> tuple[str, ...]:
    """Those of the list, or else of the pattern, a letter per layer."""
    pattern = reader.get("hybrid_override_pattern", None)
    named = reader.get("layers_block_type", reader.get("layer_types", None if pattern else DEFAULT_KINDS))
    by_name = ("layers_block_type", named, list, KINDS)
    name, listed, form, known = by_name if named else ("hybrid_override_pattern", pattern, str, LETTERS)
    if not isinstance(listed, form) or not listed or len(listed) > MAX_LAYERS:
        raise reader.error(f"{name} must name a kind for each of up to {MAX_LAYERS} layers")
    for kind in listed:
        if not isinstance(kind, str) or kind not in known:
            raise reader.error(f"{name} {kind!r} is not supported, only {', '.join(known)}")
    return tuple(known[kind] for kind in listed)


def _mamba_fields(reader: ConfigReader) -> dict[str, Any]:
    """The fields of a `MambaConfig`; transformers also takes the older names of some."""
    only_free_steps(reader)
    reader.only("mamba_hidden_act", "silu", "swish")
    reader = reader.renamed({"n_groups": "mamba_n_groups", "conv_kernel": "mamba_d_conv"})
    heads, groups = reader.integer("mamba_num_heads", 128), reader.integer("n_groups", 8)
    if heads % groups:
        raise reader.error(f"mamba_num_heads {heads} is not a multiple of n_groups {groups}")
    check_recurrence(reader, ("conv_kernel", 4), ("ssm_state_size", 128))
    bias = reader.boolean("use_bias", default=False)
    return {
        "mamba_heads": heads,
        "mamba_head_dim": reader.integer("mamba_head_dim", 64),
        "mamba_groups": groups,
        "state_size": reader.integer("ssm_state_size", 128),
        "conv_width": reader.integer("conv_kernel", 4),
        "conv_bias": reader.boolean("mamba_conv_bias", default=reader.boolean("use_conv_bias", default=True)),
        "projection_bias": bias,
        "mamba_output_bias": bias,
        "smallest_step": reader.number("mamba_dt_min", reader.number("time_step_min", 0.001)),
    }
