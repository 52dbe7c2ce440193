"""vLLM's attention on CPUs, with the order of the KV cache that our kernels read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from vllm.config import ModelConfig, VllmConfig, get_current_vllm_config
from vllm.v1.attention.backend import AttentionType
from vllm.v1.attention.backends.cpu_attn import (
    CPUAttentionBackend,
    CPUAttentionBackendImpl,
    CPUAttentionMetadata,
    CPUAttentionMetadataBuilder,
)
from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

from armllm import kernels
from armllm.vllm_plugin import VARIABLE
from armllm.vllm_plugin.interface import check_attributes, check_methods

if TYPE_CHECKING:
    from torch import Tensor

    from armllm.kernels import KVCacheLayout

BLOCK_SIZES = (16, 32, 64, 128)
# what is read of objects of vLLM
ATTRIBUTES = {
    VllmConfig: ("model_config", "speculative_config", "kv_transfer_config"),
    ModelConfig: ("dtype", "is_diffusion", "is_multimodal_model"),
    CPUAttentionMetadata: ("num_actual_tokens", "block_table", "query_start_loc", "seq_lens", "causal"),
    CPUAttentionBackendImpl: (
        "attn_type",
        "kv_cache_dtype",
        "num_heads",
        "num_kv_heads",
        "head_size",
        "scale",
        "sliding_window",
        "logits_soft_cap",
        "alibi_slopes",
        "sinks",
    ),
}


class ArmllmAttentionImpl(CPUAttentionBackendImpl):  # type: ignore[misc]
    """Causal attention of a decoder. A layer that our kernels can't compute is vLLM's as before.

    A block has as many bytes as in vLLM's own order. So the size of the cache, prefix caching and the copies
    of whole blocks stay as they are.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        config = get_current_vllm_config()
        self.dtype = config.model_config.dtype
        self.takes_ours = (
            self.attn_type == AttentionType.DECODER
            and self.kv_cache_dtype in {"auto", str(self.dtype).removeprefix("torch.")}
            and self.head_size % 8 == 0
            # pictures may see each other both ways, drafts too; other machines want vLLM's order of a block
            and not config.model_config.is_multimodal_model
            and not config.model_config.is_diffusion
            and config.speculative_config is None
            and config.kv_transfer_config is None
        )
        self.layouts: dict[int, KVCacheLayout] = {}
        self.float_sinks: Tensor | None = None

    def _layout(self, kv_cache: Tensor) -> KVCacheLayout | None:
        """The order of a cache [blocks, KV heads, block size, 2 head size]; None: vLLM's."""
        block_size = kv_cache.shape[2]
        if not self.takes_ours or block_size not in BLOCK_SIZES or kv_cache.dtype is not self.dtype:
            return None
        found = self.layouts.get(block_size)
        if found is None:
            found = self.layouts[block_size] = kernels.kv_cache_layout(
                self.dtype,
                num_kv_heads=self.num_kv_heads,
                head_dim=self.head_size,
                block_size=block_size,
            )
            if found.block_bytes != kv_cache[0].nbytes or not kv_cache.is_contiguous():
                self.takes_ours = False
                return None
        return found

    def do_kv_cache_update(
        self,
        layer: torch.nn.Module,
        key: Tensor,
        value: Tensor,
        kv_cache: Tensor,
        slot_mapping: Tensor,
    ) -> None:
        """Write keys and values of the step's tokens."""
        layout = self._layout(kv_cache)
        if layout is None:
            super().do_kv_cache_update(layer, key, value, kv_cache, slot_mapping)
            return
        count = len(slot_mapping)
        kernels.write_kv_cache(key[:count], value[:count], _blocks(kv_cache, layout), layout, slot_mapping)

    def forward(  # noqa: PLR0917 - the order is vLLM's
        self,
        layer: torch.nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        kv_cache: Tensor,
        attn_metadata: Any,
        output: Tensor,
        *args: Any,
        **kwargs: Any,
    ) -> Tensor:
        """Attention of the step's tokens [tokens, heads, head size] over the cache, into ``output``."""
        layout = None if attn_metadata is None else self._layout(kv_cache)
        if layout is None or args or any(value is not None for value in kwargs.values()):
            result: Tensor = super().forward(
                layer, query, key, value, kv_cache, attn_metadata, output, *args, **kwargs
            )
            return result
        if not attn_metadata.causal:
            raise RuntimeError(f"armllm has only causal attention in vLLM: set {VARIABLE}=-attention")
        count = attn_metadata.num_actual_tokens
        if self.sinks is not None and self.float_sinks is None:
            self.float_sinks = self.sinks.float()
        shape = (count, self.num_heads, self.head_size)
        kernels.paged_attention(
            output[:count].view(shape),
            query[:count].view(shape),
            _blocks(kv_cache, layout),
            layout,
            attn_metadata.block_table,
            attn_metadata.query_start_loc,
            attn_metadata.seq_lens,
            self.scale,
            sliding_window=self.sliding_window if self.sliding_window > 0 else None,
            logit_soft_cap=self.logits_soft_cap or None,
            alibi_slopes=self.alibi_slopes,
            sinks=self.float_sinks,
        )
        return output


def _blocks(kv_cache: Tensor, layout: KVCacheLayout) -> Tensor:
    return kv_cache.view(torch.uint8).view(len(kv_cache), layout.block_bytes)


class ArmllmAttentionBackend(CPUAttentionBackend):  # type: ignore[misc]
    """vLLM's for CPUs with our kernels; blocks and metadata stay vLLM's."""

    @classmethod
    def get_impl_cls(cls) -> type:
        """What computes a layer: vLLM's where it derives a backend whose metadata mean another attention."""
        is_usual = cls.get_builder_cls() is CPUAttentionMetadataBuilder
        return ArmllmAttentionImpl if is_usual else CPUAttentionBackendImpl


def register() -> None:
    """Put `ArmllmAttentionBackend` in the place of vLLM's for CPUs."""
    check_methods(ArmllmAttentionImpl, ("do_kv_cache_update", "forward"))
    for kind, names in ATTRIBUTES.items():
        check_attributes(kind, names)
    register_backend(AttentionBackendEnum.CPU_ATTN, f"{__name__}.{ArmllmAttentionBackend.__name__}")
