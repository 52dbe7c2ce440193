"""GPT-NeoX (Black et al. 2022) and Pythia: Falcon's matrices, two norms even where branches are parallel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from armllm.layers.activation import PLAIN
from armllm.models.falcon import FalconDecoderLayer, GroupedAttention
from armllm.models.llama import LlamaForCausalLM, llama_fields
from armllm.models.rope import read_rope
from armllm.models.stablelm import ParallelConfig
from armllm.models.starcoder2 import LayerNormDecoderLayer
from armllm.models.windows import same_everywhere

if TYPE_CHECKING:
    from torch import Tensor

    from armllm.checkpoint.config import ConfigReader
    from armllm.checkpoint.weights import Weights
    from armllm.layers.linear import Linear


class GPTNeoXAttention(GroupedAttention):
    """One matrix for query, key and value."""

    fused_name, output_name = "query_key_value", "dense"


class GPTNeoXDecoderLayer(FalconDecoderLayer):
    """Each branch has its norm of the same sum, or they are one after the other, as in Llama."""

    attention_class = GPTNeoXAttention  # type: ignore[assignment]
    attention_name = "attention"

    def load_norms(self, config: Any, weights: Weights) -> None:
        """Those of the branches."""
        self.parallel = config.parallel
        LayerNormDecoderLayer.load_norms(self, config, weights)

    def mlp_input(self, x: Tensor, residual: Tensor) -> Tensor:  # noqa: ARG002 - attention's
        """Its own norm of the sum."""
        return self.post_attention_layernorm(residual)


class GPTNeoXForCausalLM(LlamaForCausalLM):
    """Llama's decoder with these layers."""

    layer_class = GPTNeoXDecoderLayer
    names = ("embed_in", "layers", "final_layer_norm")
    head_name = "embed_out"
    ignored = (*LlamaForCausalLM.ignored, "*.attention.bias", "*.attention.masked_bias")

    @staticmethod
    def decoder_weights(weights: Weights) -> Weights:
        """All but the head."""
        return weights.scope("gpt_neox", optional=True)

    def load_head(self, weights: Weights) -> Linear:
        """What makes scores of final states; transformers 5 has another name for it."""
        if weights.has("lm_head.weight"):
            self.head_name = "lm_head"
        return super().load_head(weights)

    @staticmethod
    def read_config(reader: ConfigReader) -> ParallelConfig:
        """The config.json of GPT-NeoX, whose rotary embedding has keys of its own."""
        common = reader.whole_heads("GPTNeoXForCausalLM", default_eos=2, default_positions=2048)
        reader.only("num_key_value_heads", common["num_heads"])
        theta, share = reader.number("rotary_emb_base", 10000.0), reader.number("rotary_pct", 0.25)
        reader.only("rope_theta", theta)
        reader.only("partial_rotary_factor", share)
        rope = read_rope(
            reader,
            common,
            default_theta=theta,
            default_partial=share,
        )
        fields = llama_fields(
            reader,
            common,
            default_eps=1e-5,
            eps_name="layer_norm_eps",
            rope=rope,
            activation=("hidden_act", "gelu", PLAIN),
            default_intermediate=24576,
        )
        bias = reader.boolean("attention_bias", default=True)
        return ParallelConfig(
            **fields,
            windows=same_everywhere(reader, common["num_layers"], None),
            qkv_bias=bias,
            output_bias=bias,
            mlp_bias=True,
            parallel=reader.boolean("use_parallel_residual", default=True),
        )
