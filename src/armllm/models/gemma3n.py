"""Gemma 3n's text model (Gemma Team 2025): streams of hidden states, of which each layer computes one.

The others follow by products of a few numbers per token (AltUp, Baykal et al. 2023, arXiv:2301.13310).
Beside each branch goes a product of low rank (LAuReL, Menghani et al. 2024, arXiv:2411.07501). Embeddings per
layer and shared keys and values are as in Gemma 4.
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

import torch

from armllm.layers.embedding import gather
from armllm.layers.linear import as_float32, load_linear
from armllm.layers.mlp import GatedMLP
from armllm.layers.norm import RMSNorm
from armllm.models.gemma3n_config import Gemma3nConfig, read_text_config
from armllm.models.gemma4 import Gemma4ForCausalLM, OwnEmbedding, SharingDecoderLayer
from armllm.models.text_part import TextPart

if TYPE_CHECKING:
    from torch import Tensor

    from armllm.checkpoint.config import ConfigReader
    from armllm.checkpoint.weights import Weights
    from armllm.layers.attention import AttentionMetadata
    from armllm.layers.rotary import RotaryEmbedding

SMALLEST_SQUARE = 1e-5  # of a stream, when it is scaled


class SparseMLP(GatedMLP):
    """Only gates far above the mean of their token open: about the share ``1 - sparsity`` of them."""

    def __init__(self, config: Gemma3nConfig, weights: Weights, index: int) -> None:
        super().__init__(weights, config.hidden_size, config.mlp_sizes[index], activation=config.activation)
        sparsity = config.sparsities[index]
        self.deviations = statistics.NormalDist().inv_cdf(sparsity) if sparsity > 0 else None

    def __call__(self, x: Tensor) -> Tensor:
        """``x[T, hidden_size]`` to the same shape."""
        if self.deviations is None:
            return super().__call__(x)
        gate, up = self.gate_up_proj(x).chunk(2, dim=-1)
        wide = as_float32(gate)
        wide = wide - wide.mean(-1, keepdim=True)
        opened = torch.relu(wide - _mean_square(wide).sqrt() * self.deviations).to(x.dtype)
        return self.down_proj(self.activation(torch.cat((opened, up), dim=1)))


class AltUp:
    """Predicts all streams before a layer, and corrects them by what the layer made of one of them.

    Its few numbers are never rounded to less than their dtype.
    """

    def __init__(self, config: Gemma3nConfig, weights: Weights) -> None:
        hidden_size, self.streams, self.active = config.hidden_size, config.streams, config.active_stream
        exact = weights.in_dtype(torch.float32)
        self.prediction = exact.take("prediction_coefs.weight", self.streams**2, self.streams)
        self.correction = exact.take("correction_coefs.weight", self.streams, self.streams)
        self.router = exact.take("modality_router.weight", self.streams, hidden_size)
        self.norm = RMSNorm(weights.scope("router_norm"), hidden_size, config.rms_norm_eps)
        self.output_scale = weights.take("correct_output_scale", hidden_size)
        self.scaled = config.scale_corrected

    def predict(self, streams: Tensor) -> Tensor:
        """``streams[T, streams, hidden_size]`` to the same shape."""
        mixing = torch.nn.functional.linear(self._modalities(streams[:, self.active]), self.prediction)
        mixing = mixing.view(-1, self.streams, self.streams).to(streams.dtype)
        return torch.bmm(mixing, streams) + streams

    def correct(self, predicted: Tensor, x: Tensor) -> Tensor:
        """``predicted[T, streams, hidden_size]`` by ``x[T, hidden_size]``."""
        factors = torch.nn.functional.linear(self._modalities(x), self.correction) + 1.0
        new = (x - predicted[:, self.active]).unsqueeze(1)
        return predicted + new * factors.to(x.dtype).unsqueeze(2)

    def output(self, corrected: Tensor) -> Tensor:
        """What the layer's own embedding sees, ``[T, hidden_size]``."""
        x = corrected[:, self.active]
        return x * self.output_scale if self.scaled else x

    def _modalities(self, x: Tensor) -> Tensor:
        """Fp32 ``[T, streams]``."""
        x = as_float32(self.norm(x)) * x.shape[-1] ** -1.0
        return torch.nn.functional.linear(x, self.router).tanh()


class Gemma3nDecoderLayer(SharingDecoderLayer):
    """A layer of one stream between prediction and correction of all."""

    def __init__(
        self, config: Gemma3nConfig, weights: Weights, rotary: RotaryEmbedding | None, index: int
    ) -> None:
        super().__init__(config, weights, rotary, index)
        self.altup = AltUp(config, weights.scope("altup"))
        laurel, size, rank = weights.scope("laurel"), config.hidden_size, config.laurel_rank
        self.left = load_linear(laurel, {"linear_left": rank}, size, bias=False)
        self.right = load_linear(laurel, {"linear_right": size}, rank, bias=False)
        self.after_laurel = self.load_norm(config, laurel, "post_laurel_norm")
        self.own = OwnEmbedding(config, weights)

    @staticmethod
    def load_mlp(config: Any, weights: Weights, index: int) -> SparseMLP:
        """As wide and as sparse as the layer says."""
        return SparseMLP(config, weights.scope("mlp"), index)

    def forward(
        self,
        streams: Tensor,
        own: Tensor,
        places: Tensor,
        metadata: AttentionMetadata,
        rows: Tensor | None,
    ) -> Tensor:
        """``streams[T, streams, hidden_size]`` after this layer; with ``rows``, ``own`` has only these."""
        predicted = self.altup.predict(streams)
        before = self.before_attention(predicted[:, self.altup.active])
        x = self.after_attention(self.self_attn(before, places, metadata, rows))
        if rows is not None:
            before = gather(before, rows)
            predicted = gather(predicted.flatten(1), rows).view(-1, *predicted.shape[1:])
        beside = before + self.after_laurel(self.right(self.left(before)))
        x = (predicted[:, self.altup.active] + x + beside) * 2.0**-0.5
        x = x + self.after_mlp(self.mlp(self.before_mlp(x)))
        corrected = self.altup.correct(predicted, x)
        corrected[:, 1:].add_(self.own(self.altup.output(corrected), own).unsqueeze(1))
        return corrected


class Gemma3nForCausalLM(Gemma4ForCausalLM):
    """Gemma 4's decoder with several streams."""

    config: Gemma3nConfig
    layer_class = Gemma3nDecoderLayer  # type: ignore[assignment]
    layers: list[Gemma3nDecoderLayer]  # type: ignore[assignment]

    def __init__(self, config: Any, weights: Weights, *, max_positions: int) -> None:
        super().__init__(config, weights, max_positions=max_positions)
        model, size, others = self.decoder_weights(weights), config.hidden_size, range(config.streams - 1)
        if self.stage.is_first:
            self.spread = load_linear(
                model, {f"altup_projections.{index}": size for index in others}, size, bias=False
            )
        if self.stage.is_last:
            self.unify = [
                load_linear(model, {f"altup_unembed_projections.{index}": size}, size, bias=False)
                for index in others
            ]

    def advance(
        self,
        states: tuple[Tensor, ...],
        token_ids: Tensor,
        places: Tensor,
        metadata: AttentionMetadata,
        rows: Tensor | None,
    ) -> tuple[Tensor, ...]:
        """All streams after the layers of this stage, and what the own embeddings of all layers say."""
        config, own = self.config, self.stage.own(self.config.num_layers)
        flat, inputs = states or self._first(token_ids)
        streams = flat.view(len(flat), config.streams, config.hidden_size)
        for index, layer in zip(own, self.layers, strict=True):
            last = self.stage.is_last and index == own[-1]
            if last and rows is not None:
                inputs = gather(inputs, rows)
            part = inputs[:, index * config.per_layer_size : (index + 1) * config.per_layer_size]
            streams = layer.forward(streams, part, places, metadata, rows if last else None)
        return (self._unified(streams),) if self.stage.is_last else (streams.flatten(1), inputs)

    def _first(self, token_ids: Tensor) -> tuple[Tensor, Tensor]:
        """All streams before the first layer, one after the other, and what the own embeddings say."""
        x = self.embed(token_ids)
        others = self.spread(x).view(len(x), self.config.streams - 1, x.shape[1])
        streams = torch.cat((x.unsqueeze(1), _as_large_as(x.unsqueeze(1), others)), dim=1)
        return streams.flatten(1), self.own_inputs(token_ids, x)

    def _unified(self, streams: Tensor) -> Tensor:
        """The final hidden states."""
        first = streams[:, :1]
        others = torch.cat(
            [product(streams[:, index]).unsqueeze(1) for index, product in enumerate(self.unify, 1)], dim=1
        )
        return self.norm(torch.cat((first, _as_large_as(first, others)), dim=1).mean(1))

    @classmethod
    def read_config(cls, reader: ConfigReader) -> Gemma3nConfig:
        """The config.json of a text model."""
        return read_text_config(reader, cls.__name__)


class Gemma3nForConditionalGeneration(TextPart, Gemma3nForCausalLM):
    """The text part of the model that also sees and hears."""

    text_type = "gemma3n_text"
    towers = ("model.vision_tower.*", "model.embed_vision.*", "model.audio_tower.*", "model.embed_audio.*")
    tied_by_default = True


def _as_large_as(first: Tensor, others: Tensor) -> Tensor:
    """``others[T, n, hidden_size]`` with the root mean square of ``first[T, 1, hidden_size]``."""
    size, sizes = (_mean_square(x) for x in (first, others))
    return (others * (size / sizes.clamp(min=SMALLEST_SQUARE)).sqrt()).to(first.dtype)


def _mean_square(x: Tensor) -> Tensor:
    """Fp32, of the last dimension, which stays."""
    x = x.float()
    return (x * x).mean(-1, keepdim=True)
