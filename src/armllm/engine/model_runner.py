"""The model, its KV cache, and the tensors of each step."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from armllm import environment, kernels
from armllm.checkpoint.mapping import mapped_spans, release
from armllm.engine.loading import load_model
from armllm.engine.memory import SHARE_FOR_KV_CACHE, available_memory, readable
from armllm.engine.placement import torch_threads
from armllm.errors import MemoryLimitError, RequestError
from armllm.layers.attention import AttentionMetadata
from armllm.layers.linear import has_own_products
from armllm.models import check_model

if TYPE_CHECKING:
    from collections.abc import Sequence as Sequences

    import numpy.typing as npt

    from armllm.checkpoint.config import ModelConfig
    from armllm.checkpoint.weights import Inventory
    from armllm.engine.config import EngineConfig
    from armllm.engine.loading import WeightSource
    from armllm.engine.sequence import Sequence
    from armllm.kernels import KVCacheLayout
    from armllm.models import Model


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StepInput:
    """The scheduled tokens of all sequences in a row. ``rows``: those whose final state is looked at."""

    token_ids: Tensor
    positions: Tensor
    rows: Tensor
    metadata: AttentionMetadata


class ModelRunner:
    """Loads the weights of a source after checking all of it, makes the KV cache, and runs steps.

    ``node``: the NUMA node whose memory is used.
    """

    def __init__(
        self,
        config: EngineConfig,
        architecture: type[Model],
        model_config: ModelConfig,
        source: WeightSource,
        node: int | None = None,
    ) -> None:
        self.model_config = model_config
        self._node = node
        self.max_model_len = config.max_model_len or self.model_config.max_model_len
        if self.max_model_len > self.model_config.max_model_len:
            raise RequestError(
                f"max_model_len {self.max_model_len} is above {self.model_config.max_model_len}, to which"
                " max_position_embeddings (and its rope scaling) in config.json limit it"
            )
        if config.max_model_len is None and config.num_gpu_blocks_override is not None:
            self.max_model_len = min(self.max_model_len, config.num_gpu_blocks_override * config.block_size)
        self.block_size = config.block_size
        self.dtype = config.torch_dtype
        self.cache_dtype = config.cache_dtype
        kernels.set_num_threads(torch.get_num_threads())
        self.own_products = has_own_products(self.dtype)
        kernels.use_own_threads(self.own_products)
        inventory, layouts = self._check(config, architecture, source)
        self.model, self.load_report = load_model(
            architecture, model_config, source, inventory, self.dtype, max_positions=self.max_model_len
        )
        with torch.inference_mode():
            for layer, layout in zip(self.model.attention_layers, layouts, strict=True):
                layer.bind(layout, kernels.allocate_kv_cache(layout, self.num_blocks))
        release(mapped_spans(source.checkpoint.files()))

    def _check(
        self, config: EngineConfig, architecture: type[Model], source: WeightSource
    ) -> tuple[Inventory, list[KVCacheLayout]]:
        """Build the model without data: every tensor must be there, and weights and cache fit into memory."""
        model, inventory = check_model(
            architecture,
            self.model_config,
            source.checkpoint,
            self.dtype,
            source.quantization,
            max_positions=self.max_model_len,
        )
        left = available_memory(self._node)
        if inventory.num_bytes > left:
            raise MemoryLimitError(
                f"the weights take {readable(inventory.num_bytes)} as {self.dtype},"
                f" and {readable(left)} of memory are left"
            )
        try:
            layouts = [
                layer.cache_layout(self.dtype, self.block_size, self.cache_dtype)
                for layer in model.attention_layers
            ]
        except ValueError as error:
            raise RequestError(f"no attention kernel for this model: {error}") from None
        block_bytes = sum(layout.block_bytes for layout in layouts)
        self.num_blocks = self._count_blocks(config, block_bytes, left - inventory.num_bytes)
        self.cache_bytes = self.num_blocks * block_bytes
        return inventory, layouts

    def _count_blocks(self, config: EngineConfig, block_bytes: int, left: int) -> int:
        """How many blocks of ``block_bytes`` (all layers together) the KV cache gets of ``left`` bytes."""
        needed = -(-self.max_model_len // self.block_size)
        if config.num_gpu_blocks_override is not None:
            num_blocks, origin = config.num_gpu_blocks_override, "num_gpu_blocks_override"
        elif (space := environment.kv_cache_bytes()) is not None:
            num_blocks, origin = space // block_bytes, "VLLM_CPU_KVCACHE_SPACE"
        else:
            # No more than max_num_seqs sequences can use: a small model need not take all memory.
            affordable = int(left * SHARE_FOR_KV_CACHE) // block_bytes
            num_blocks, origin = min(affordable, needed * config.max_num_seqs), "the memory that is left"
        if num_blocks < needed:
            fits = num_blocks * self.block_size
            advice = f"lower max_model_len to at most {fits} or allow more" if fits else "allow more"
            raise MemoryLimitError(
                f"the KV cache can't hold one sequence: {origin} allows {fits} tokens"
                f" ({readable(num_blocks * block_bytes)}), max_model_len {self.max_model_len} needs"
                f" {readable(needed * block_bytes)}; {advice}"
            )
        if num_blocks * block_bytes > left:
            raise MemoryLimitError(
                f"the KV cache that {origin} asks for takes {readable(num_blocks * block_bytes)}, and after"
                f" the weights {readable(max(0, left))} of memory are left"
            )
        return num_blocks

    @torch.inference_mode()
    def run(self, sequences: Sequences[Sequence]) -> Tensor:
        """Compute the scheduled tokens; fp32 logits ``[R, vocab_size]`` of the R sequences that sample.

        Sequences with a reader show it what it wants to see of the hidden states.
        """
        counts = [_num_rows(sequence) for sequence in sequences]
        step = self._prepare(sequences, counts)
        with torch_threads(few=self.own_products):
            hidden = self.model(step.token_ids, step.positions, step.metadata, step.rows)
        sampling = []
        row = 0
        for sequence, count in zip(sequences, counts, strict=True):
            if count and sequence.reader is not None:
                first = sequence.num_computed_tokens + sequence.num_scheduled_tokens - count
                sequence.reader.read(first, hidden[row : row + count], self.model.logits)
            row += count
            if sequence.samples_next:
                sampling.append(row - 1)
        elements = len(sampling) * self.model_config.vocab_size
        with torch_threads(few=self.own_products, elements=elements):
            return self.model.logits(hidden if len(sampling) == len(hidden) else hidden[sampling])

    def _prepare(self, sequences: Sequences[Sequence], num_rows: Sequences[int]) -> StepInput:
        """The tensors of a step; of each sequence the last ``num_rows`` tokens' states are wanted."""
        counts = np.array([sequence.num_scheduled_tokens for sequence in sequences])
        starts = np.array([sequence.num_computed_tokens for sequence in sequences])
        totals = np.array([sequence.num_tokens for sequence in sequences])
        ends = np.cumsum(counts)
        query_start_loc = np.zeros(len(sequences) + 1, dtype=np.int32)
        query_start_loc[1:] = ends
        of_sequence = np.repeat(np.arange(len(sequences)), counts)
        positions = np.arange(ends[-1]) + (starts - query_start_loc[:-1])[of_sequence]
        block_tables = np.zeros((len(sequences), max(len(s.block_table) for s in sequences)), dtype=np.int32)
        token_ids = np.empty(ends[-1], dtype=np.int64)
        for row, sequence in enumerate(sequences):
            block_tables[row, : len(sequence.block_table)] = sequence.block_table
            first = sequence.num_computed_tokens
            token_ids[query_start_loc[row] : ends[row]] = sequence.token_ids[
                first : first + sequence.num_scheduled_tokens
            ]
        blocks = block_tables[of_sequence, positions // self.block_size].astype(np.int64)
        return StepInput(
            token_ids=torch.from_numpy(token_ids),
            positions=torch.from_numpy(positions),
            rows=torch.from_numpy(_last_rows(ends, np.array(num_rows))),
            metadata=AttentionMetadata(
                slot_mapping=torch.from_numpy(blocks * self.block_size + positions % self.block_size),
                block_tables=torch.from_numpy(block_tables),
                query_start_loc=torch.from_numpy(query_start_loc),
                seq_lens=torch.from_numpy((starts + counts).astype(np.int32)),
                total_lens=torch.from_numpy(totals[of_sequence]),
            ),
        )


def _num_rows(sequence: Sequence) -> int:
    """How many of the scheduled tokens, counted from the last, have a final state that someone looks at."""
    return sequence.num_scheduled_tokens if sequence.needs_every_token else int(sequence.reaches_end)


def _last_rows(ends: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The ``counts[i]`` numbers below ``ends[i]`` for each i, in order."""
    stops = np.cumsum(counts)
    return np.arange(stops[-1]) + np.repeat(ends - stops, counts)
