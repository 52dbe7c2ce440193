"""Qwen2.5-VL (Bai et al. 2025): Qwen2 with positions of three axes, and an encoder of pictures."""

from __future__ import annotations

import copy
import dataclasses
import itertools
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from armllm import kernels
from armllm.checkpoint.config import MAX_LAYERS, MAX_WIDTH, PictureConfig
from armllm.layers.activation import GATED, plain
from armllm.layers.encoder_attention import EncoderAttention
from armllm.layers.linear import dense, load_linear
from armllm.layers.lora import building_with
from armllm.layers.mlp import GatedMLP
from armllm.layers.norm import RMSNorm
from armllm.layers.ranks import current_ranks
from armllm.layers.stages import WHOLE, current_stage
from armllm.models.llama import LlamaConfig, llama_fields
from armllm.models.qwen2 import Qwen2ForCausalLM, qwen_windows
from armllm.models.rope import read_rope

if TYPE_CHECKING:
    from armllm.checkpoint.config import ConfigReader
    from armllm.checkpoint.weights import Weights
    from armllm.layers.rotary import RopeParameters

EPS = 1e-6  # of the encoder's norms
TOWERS = ("visual", "model.visual")  # as on the hub, and as transformers 5 writes it
ROPE_TYPES = ("default", "linear", "llama3", "yarn")
SECTIONS = (16, 24, 24)  # of the pairs of a head: those that turn with time, row and column
DEFAULT_SIZES = {"vocab_size": 152064, "hidden_size": 8192, "num_hidden_layers": 80}


@dataclasses.dataclass(frozen=True, kw_only=True)
class VisionConfig:
    """Of the encoder. window: merged patches on a side of it. full: layers that see all of a picture."""

    depth: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    activation: str
    theta: float
    window: int
    full: frozenset[int]
    patches: PictureConfig

    @property
    def head_dim(self) -> int:
        """Of each head."""
        return self.hidden_size // self.num_heads


@dataclasses.dataclass(frozen=True, kw_only=True)
class Qwen2_5_VLConfig(LlamaConfig):  # noqa: N801 - as the model is called
    """The text model's configuration, and the encoder's."""

    vision: VisionConfig


class VisionLayer:
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, config: VisionConfig, weights: Weights, *, full: bool) -> None:
        size = config.hidden_size
        self.full = full
        self.heads = config.num_heads, config.head_dim
        self.norm1, self.norm2 = (RMSNorm(weights.scope(name), size, EPS) for name in ("norm1", "norm2"))
        attention = weights.scope("attn")
        self.qkv = load_linear(attention, {"qkv": 3 * size}, size, bias=True)
        self.proj = load_linear(attention, {"proj": size}, size, bias=True)
        self.attention = EncoderAttention(num_heads=config.num_heads, head_dim=config.head_dim)
        self.mlp = GatedMLP(
            weights.scope("mlp"), size, config.intermediate_size, activation=config.activation, bias=True
        )

    def __call__(self, x: Tensor, rows: Tensor, table: Tensor, starts: Tensor) -> Tensor:
        """``x[N, hidden_size]`` to the same; patches see each other between two of ``starts``."""
        query, key, value = self.qkv(self.norm1(x)).view(x.shape[0], 3, *self.heads).unbind(1)
        kernels.rotary_embedding(rows, query, key, table)
        x = x + self.proj(self.attention(query, key, value, starts).flatten(1))
        return x + self.mlp(self.norm2(x))


class VisionEncoder:
    """Patches of one picture to the states that stand for it in the text.

    Its weights are never rounded to 8 or 4 bits, and LoRA adapters do not reach it.
    """

    def __init__(self, config: VisionConfig, weights: Weights, out_features: int) -> None:
        weights = copy.copy(weights)
        weights.quantization = None
        self.config = config
        patches, size = config.patches, config.hidden_size
        side = patches.patch_size
        shape = (size, patches.channels, patches.temporal_patch_size, side, side)
        with building_with(None):
            self.embed = dense(weights.take("patch_embed.proj.weight", *shape).flatten(1))
            self.layers = [
                VisionLayer(config, weights.scope(f"blocks.{index}"), full=index in config.full)
                for index in range(config.depth)
            ]
            merger = weights.scope("merger")
            self.norm = RMSNorm(merger.scope("ln_q"), size, EPS)
            self.merged = size * patches.merge_size**2
            self.up = load_linear(merger, {"mlp.0": self.merged}, self.merged, bias=True)
            self.down = load_linear(merger, {"mlp.2": out_features}, self.merged, bias=True)
        self.activation = plain("gelu")

    def __call__(self, pixels: Tensor, height: int, width: int) -> Tensor:
        """``pixels[height * width, ...]``, in the order of merged patches, to a state for each of those."""
        merge, count = self.config.patches.merge_size, height * width
        order, lengths = window_order(height // merge, width // merge, self.config.window)
        unit = merge * merge
        patch_order = (order[:, None] * unit + torch.arange(unit)).flatten()
        ends = itertools.accumulate(unit * length for length in lengths)
        windows = torch.tensor([0, *ends], dtype=torch.int32)
        whole = torch.tensor([0, count], dtype=torch.int32)
        table, rows = self._table(height, width)[patch_order].contiguous(), torch.arange(count)
        x = self.embed(pixels)[patch_order]
        for layer in self.layers:
            x = layer(x, rows, table, whole if layer.full else windows)
        merged = self.down(self.activation(self.up(self.norm(x).view(-1, self.merged))))
        out = torch.empty_like(merged)
        out[order] = merged
        return out

    def _table(self, height: int, width: int) -> Tensor:
        """Cosines and sines of each patch: half of a head's pairs turn with the row, half with the column."""
        dim, merge = self.config.head_dim // 2, self.config.patches.merge_size
        frequencies = 1.0 / self.config.theta ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim)
        row, column = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
        blocks = (height // merge, merge, width // merge, merge)
        angles = torch.cat(
            [
                torch.outer(axis.reshape(blocks).transpose(1, 2).flatten().float(), frequencies)
                for axis in (row, column)
            ],
            dim=-1,
        )
        return torch.cat((angles.cos(), angles.sin()), dim=-1)


class Qwen2_5_VLForConditionalGeneration(Qwen2ForCausalLM):  # noqa: N801
    """Qwen2's decoder, whose positions have three axes within pictures, and the encoder.

    Where several processes compute the model, it has no encoder, and takes text only.
    """

    config: Qwen2_5_VLConfig
    vision: VisionEncoder | None = None

    def __init__(self, config: Qwen2_5_VLConfig, weights: Weights, *, max_positions: int) -> None:
        super().__init__(config, weights, max_positions=max_positions)
        if _sees():
            tower = next((name for name in TOWERS if weights.has(f"{name}.merger.ln_q.weight")), TOWERS[0])
            self.vision = VisionEncoder(config.vision, weights.scope(tower), config.hidden_size)

    def embed_picture(self, pixels: Tensor, height: int, width: int) -> Tensor:
        """States ``[tokens, hidden_size]`` of a picture of so many patches."""
        assert self.vision is not None  # noqa: S101 - such an engine refuses pictures
        return self.vision(pixels.to(self.embed_tokens.weight.dtype), height, width)

    @staticmethod
    def decoder_weights(weights: Weights) -> Weights:
        """All but the head and the encoder."""
        new = weights.scope("model.language_model", optional=True)
        return weights.scope("model") if new is weights else new

    @staticmethod
    def read_config(reader: ConfigReader) -> Qwen2_5_VLConfig:
        """Qwen2.5-VL's config.json: the text model's keys in text_config, or beside vision_config."""
        nested = reader.get("text_config", None) is not None
        text = reader.section("text_config") if nested else reader
        common = text.common(
            "Qwen2_5_VLForConditionalGeneration",
            default_eos=151645,
            default_positions=32768,
            default_heads=64,
            default_kv_heads=8,
            default_sizes=DEFAULT_SIZES,
        )
        rope = _read_rope(text, common)
        fields = llama_fields(text, common, default_eps=1e-5, rope=rope, default_intermediate=29568)
        windows = qwen_windows(text, common["num_layers"], default_first=80)
        vision = _read_vision(reader, common)
        if nested:
            text.refuse_unknown()
            eos = reader.token_ids("eos_token_id", None, common["vocab_size"])
            tied = reader.boolean("tie_word_embeddings", default=False)
            fields |= {
                "tie_word_embeddings": tied or common["tie_word_embeddings"],
                "eos_token_ids": eos or common["eos_token_ids"],
            }
        return Qwen2_5_VLConfig(
            **fields, windows=windows, qkv_bias=True, vision=vision, pictures=vision.patches
        )

    @classmethod
    def ignored_tensors(cls, config: Any) -> tuple[str, ...]:
        """The encoder, where it is not loaded."""
        towers = () if _sees() else tuple(f"{tower}.*" for tower in TOWERS)
        return (*super().ignored_tensors(config), *towers)


def window_order(height: int, width: int, window: int) -> tuple[Tensor, list[int]]:
    """Merged patches window by window, and how many are in each; those at the edges are smaller."""
    grid = torch.arange(height * width).view(height, width)
    parts = [
        grid[top : top + window, left : left + window].flatten()
        for top in range(0, height, window)
        for left in range(0, width, window)
    ]
    return torch.cat(parts), [len(part) for part in parts]


def _sees() -> bool:
    """Whether the model that is being built takes pictures."""
    return current_ranks() is None and current_stage().size == WHOLE.size


def _read_rope(text: ConfigReader, common: dict[str, Any]) -> RopeParameters:
    """Qwen2's, with the axes in mrope_section."""
    rope = read_rope(
        text,
        common,
        default_theta=1000000.0,
        aliases={"mrope": "default"},
        ignored=("mrope_section",),
    )
    if rope.rope_type not in ROPE_TYPES:
        raise text.error(f"rope_type {rope.rope_type!r} is not supported for this architecture")
    values = text.get("rope_scaling", None) or text.get("rope_parameters", {})
    sections = values.get("mrope_section") or list(SECTIONS)
    good = isinstance(sections, list) and len(sections) == 3
    good = good and all(isinstance(one, int) and not isinstance(one, bool) and one > 0 for one in sections)
    if not good or sum(sections) != rope.rotary_dim // 2:
        raise text.error(
            f"mrope_section must be three numbers of pairs, {rope.rotary_dim // 2} in all, not {sections!r}"
        )
    return dataclasses.replace(rope, sections=tuple(sections))


def _read_vision(reader: ConfigReader, common: dict[str, Any]) -> VisionConfig:
    """vision_config, and the tokens of pictures."""
    vision = reader.section("vision_config")
    vision.only("model_type", "qwen2_5_vl_vision", "qwen2_5_vl")
    depth, size = vision.integer("depth", 32), vision.integer("hidden_size", 3584)
    heads = vision.integer("num_heads", 16)
    if depth > MAX_LAYERS or size > MAX_WIDTH:
        raise vision.error(f"depth {depth} and hidden_size {size}: no model is as large")
    if size % heads or size // heads % 8:
        raise vision.error(f"hidden_size {size} must be {heads} heads of a multiple of 8")
    vision.only("out_hidden_size", common["hidden_size"])
    vision.only("in_channels", 3)
    vision.only("in_chans", 3)
    patch, merge = vision.integer("patch_size", 14), vision.integer("spatial_merge_size", 2)
    vision.only("spatial_patch_size", patch)
    window = vision.integer("window_size", 112) // merge // patch
    if not window:
        raise vision.error("window_size must be at least spatial_merge_size times patch_size")
    full = vision.get("fullatt_block_indexes", [7, 15, 23, 31])
    if not isinstance(full, list) or not all(isinstance(index, int) for index in full):
        raise vision.error(f"fullatt_block_indexes must be a list of layers, not {full!r}")
    rope = vision.get("rope_parameters", {})
    if not isinstance(rope, dict) or rope.get("rope_type", "axial") != "axial":
        raise vision.error(f"rope_parameters must be those of the type axial, not {rope!r}")
    vocabulary = common["vocab_size"]
    tokens = [
        next(iter(reader.token_ids(name, min(default, vocabulary - 1), vocabulary)), 0)
        for name, default in (("image_token_id", 151655), ("video_token_id", 151656))
    ]
    config = VisionConfig(
        depth=depth,
        hidden_size=size,
        intermediate_size=vision.integer("intermediate_size", 3420),
        num_heads=heads,
        activation=vision.choice("hidden_act", "silu", GATED),
        theta=type(vision)(rope, reader.path, "vision_config.rope_parameters.").number("rope_theta", 1e4),
        window=window,
        full=frozenset(full),
        patches=PictureConfig(
            token_id=tokens[0],
            patch_size=patch,
            merge_size=merge,
            temporal_patch_size=vision.integer("temporal_patch_size", 2),
            channels=3,
        ),
    )
    vision.refuse_unknown()
    return config
