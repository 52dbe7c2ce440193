"""GPT-2 (Radford et al. 2019): learned positions, layer norms, biases; matrices are stored transposed."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from armllm.layers.activation import PLAIN
from armllm.layers.embedding import Embedding
from armllm.layers.rotary import RopeParameters
from armllm.models.llama import LlamaConfig, LlamaForCausalLM, plain_mlp
from armllm.models.phi3 import Phi3Attention
from armllm.models.starcoder2 import LayerNormDecoderLayer
from armllm.models.windows import same_everywhere

if TYPE_CHECKING:
    from torch import Tensor

    from armllm.checkpoint.config import ConfigReader
    from armllm.checkpoint.weights import Weights
    from armllm.layers.mlp import PlainMLP
    from armllm.layers.rotary import RotaryEmbedding


@dataclasses.dataclass(frozen=True, kw_only=True)
class GPT2Config(LlamaConfig):
    """scale: of the scores; by_layer: which are also divided by the number of the layer, from 1."""

    scale: float
    by_layer: bool


class GPT2Attention(Phi3Attention):
    """Query, key and value come from one matrix; nothing turns."""

    fused_name, output_name = "c_attn", "c_proj"

    def __init__(self, config: Any, weights: Weights, rotary: RotaryEmbedding | None, index: int) -> None:
        super().__init__(config, weights.transposed(), rotary, index)
        if config.by_layer:
            self.attention.scale /= index + 1

    @staticmethod
    def score_options(config: Any) -> dict[str, Any]:
        """The scale."""
        return {"scale": config.scale}


class GPT2DecoderLayer(LayerNormDecoderLayer):
    """Llama's layer with layer norms and a plain feed-forward part."""

    attention_class = GPT2Attention
    attention_name = "attn"
    norm_names = ("ln_1", "ln_2")

    @staticmethod
    def load_mlp(config: Any, weights: Weights, index: int) -> PlainMLP:  # noqa: ARG004
        """The feed-forward part."""
        return plain_mlp(config, weights.transposed(), ("c_fc", "c_proj"))


class GPT2LMHeadModel(LlamaForCausalLM):
    """Llama's decoder with these layers and a table of positions."""

    layer_class = GPT2DecoderLayer
    names = ("wte", "h", "ln_f")
    ignored = ("*.attn.bias", "*.attn.masked_bias")  # masks

    def __init__(self, config: GPT2Config, weights: Weights, *, max_positions: int) -> None:
        super().__init__(config, weights, max_positions=max_positions)
        self.rotaries = []
        if self.stage.is_first:
            table = self.decoder_weights(weights).scope("wpe")
            self.embed_positions = Embedding(table, config.max_position_embeddings, config.hidden_size)

    @staticmethod
    def load_rotary(config: Any, max_positions: int) -> Any:  # noqa: ARG004
        """None."""
        return None

    @staticmethod
    def decoder_weights(weights: Weights) -> Weights:
        """All but the head; the oldest checkpoints have no prefix."""
        return weights.scope("transformer", optional=True)

    @staticmethod
    def read_config(reader: ConfigReader) -> GPT2Config:
        """GPT-2's config.json."""
        reader = gpt_names(reader)
        reader.only("add_cross_attention", False)
        reader.boolean("reorder_and_upcast_attn", default=False)  # by which fewer scores overflow in fp16
        common = reader.whole_heads(
            "GPT2LMHeadModel", default_eos=50256, default_positions=1024, default_tied=True
        )
        reader.only("num_key_value_heads", common["num_heads"])
        scaled = reader.boolean("scale_attn_weights", default=True)
        return GPT2Config(
            **common,
            windows=same_everywhere(reader, common["num_layers"], None),
            intermediate_size=reader.integer("n_inner", 4 * common["hidden_size"]),
            activation=reader.choice("activation_function", "gelu_new", PLAIN),
            rms_norm_eps=reader.number("layer_norm_epsilon", 1e-5),
            rope=RopeParameters(rotary_dim=0),
            qkv_bias=True,
            output_bias=True,
            mlp_bias=True,
            scale=common["head_dim"] ** -0.5 if scaled else 1.0,
            by_layer=reader.boolean("scale_attn_by_inverse_layer_idx", default=False),
        )

    def places(self, positions: Tensor, total_lens: Tensor) -> Tensor:  # noqa: ARG002 - of no effect
        """Rows of the table of positions."""
        return positions

    def first_states(self, token_ids: Tensor, places: Tensor) -> Tensor:
        """What the first layer sees of tokens at these places."""
        return self.embed(token_ids).add_(self.embed_positions(places))


def gpt_names(reader: ConfigReader) -> ConfigReader:
    """The config.json of OpenAI's and EleutherAI's first models by the names that all others have."""
    return reader.renamed(
        {
            "hidden_size": "n_embd",
            "num_hidden_layers": "n_layer",
            "num_attention_heads": "n_head",
            "max_position_embeddings": "n_positions",
        }
    )
