"""GPT-J (Wang and Komatsuzaki 2021): branches side by side, neighbors as rotary pairs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from armllm.layers.activation import PLAIN
from armllm.layers.rotary import RopeParameters
from armllm.models.gpt2 import GPT2LMHeadModel, gpt_names
from armllm.models.llama import LlamaAttention, LlamaForCausalLM, llama_fields, plain_mlp
from armllm.models.stablelm import ParallelConfig, ParallelDecoderLayer
from armllm.models.windows import same_everywhere

if TYPE_CHECKING:
    from armllm.checkpoint.config import ConfigReader
    from armllm.checkpoint.weights import Weights
    from armllm.layers.mlp import PlainMLP


class GPTJAttention(LlamaAttention):
    """Llama's attention."""

    output_name = "out_proj"


class GPTJDecoderLayer(ParallelDecoderLayer):
    """x + attention(norm(x)) + mlp(norm(x))."""

    attention_class = GPTJAttention
    attention_name = "attn"
    norm_names = ("ln_1",)

    @staticmethod
    def load_mlp(config: Any, weights: Weights, index: int) -> PlainMLP:  # noqa: ARG004
        """The feed-forward part."""
        return plain_mlp(config, weights, ("fc_in", "fc_out"))


class GPTJForCausalLM(LlamaForCausalLM):
    """Llama's decoder with these layers."""

    layer_class = GPTJDecoderLayer
    names = GPT2LMHeadModel.names
    ignored = GPT2LMHeadModel.ignored
    decoder_weights = staticmethod(GPT2LMHeadModel.decoder_weights)

    @staticmethod
    def read_config(reader: ConfigReader) -> ParallelConfig:
        """GPT-J's config.json."""
        reader = gpt_names(reader)
        for name in ("rotary", "scale_attn_weights"):
            reader.only(name, True)
        common = reader.whole_heads("GPTJForCausalLM", default_eos=50256, default_positions=2048)
        reader.only("num_key_value_heads", common["num_heads"])
        turned, head_dim = reader.integer("rotary_dim", 64), common["head_dim"]
        if turned % 2 or turned > head_dim:
            raise reader.error(f"rotary_dim {turned} is odd or above {head_dim}, the size of a head")
        size = reader.integer("n_inner", 4 * common["hidden_size"])
        fields = llama_fields(
            reader.changed(intermediate_size=size),
            common,
            default_eps=1e-5,
            eps_name="layer_norm_epsilon",
            rope=RopeParameters(rotary_dim=turned, interleaved=True),
            activation=("activation_function", "gelu_new", PLAIN),
        )
        return ParallelConfig(
            **fields,
            windows=same_everywhere(reader, common["num_layers"], None),
            mlp_bias=True,
            head_bias=True,
            parallel=True,
        )
