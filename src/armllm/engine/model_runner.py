"""The model, its KV cache, and the tensors of each step."""

from __future__ import annotations

import dataclasses
import logging
import pickle
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from armllm import environment, kernels
from armllm.checkpoint.mapping import mapped_spans, release
from armllm.engine.loading import load_model
from armllm.engine.memory import SHARE_FOR_KV_CACHE, available_memory, readable
from armllm.engine.placement import torch_threads
from armllm.engine.recording import RecordedDecode
from armllm.errors import MemoryLimitError, RequestError
from armllm.layers.attention import AttentionMetadata
from armllm.layers.linear import has_own_products, has_torch_product
from armllm.layers.lora import AdapterSlots, building_with
from armllm.layers.ranks import INTERRUPTED, building_for
from armllm.models import check_model

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Sequence as Sequences
    from contextlib import AbstractContextManager

    import numpy.typing as npt

    from armllm._kernels import Ranks
    from armllm.checkpoint.config import ModelConfig
    from armllm.checkpoint.weights import Inventory
    from armllm.engine.config import EngineConfig
    from armllm.engine.loading import WeightSource
    from armllm.engine.sequence import Sequence
    from armllm.kernels import KVCacheLayout
    from armllm.models import Model

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StepInput:
    """The scheduled tokens of all sequences in a row.

    ``rows``: those whose final state is looked at; None: all. ``total_lens`` int64 [T]: all tokens of each
    token's sequence, those of later steps included.
    """

    token_ids: Tensor
    positions: Tensor
    total_lens: Tensor
    rows: Tensor | None
    metadata: AttentionMetadata


logger = logging.getLogger(__name__)


class ModelRunner:
    """Loads the weights of a source after checking all of it, makes the KV cache, and runs steps.

    ``node``: the NUMA node whose memory is used. ``ranks``: the processes that compute the model together.
    ``checked`` is called with the runner before it loads.
    """

    def __init__(
        self,
        config: EngineConfig,
        architecture: type[Model],
        model_config: ModelConfig,
        source: WeightSource,
        node: int | None = None,
        *,
        ranks: Ranks | None = None,
        checked: Callable[[ModelRunner], None] = lambda _: None,
    ) -> None:
        self.model_config = model_config
        self._node = node
        self._ranks = ranks
        self._num_ranks = 1 if ranks is None else ranks.size
        longest = self.model_config.max_model_len
        self._fits_cache = config.max_model_len == -1
        wanted = None if self._fits_cache else config.max_model_len
        self.max_model_len = wanted or min(longest, self.model_config.default_model_len or longest)
        if self.max_model_len > self.model_config.max_model_len:
            raise RequestError(
                f"max_model_len {self.max_model_len} is above {self.model_config.max_model_len}, to which"
                " max_position_embeddings (and its rope scaling) in config.json limit it"
            )
        if wanted is None and config.num_gpu_blocks_override is not None:
            self.max_model_len = min(self.max_model_len, config.num_gpu_blocks_override * config.block_size)
        self.block_size = config.block_size
        self.dtype = config.torch_dtype
        self.cache_dtype = config.cache_dtype
        kernels.set_num_threads(torch.get_num_threads())
        self.own_products = has_own_products(self.dtype)
        kernels.use_own_threads(self.own_products)
        with building_for(ranks):
            with building_with(planned := self._slots(config)):
                inventory, layouts = self._check(config, architecture, source, planned)
            checked(self)
            self.slots = self._slots(config)
            with building_with(self.slots):
                self.model, self.load_report = load_model(
                    architecture,
                    model_config,
                    source,
                    inventory,
                    self.dtype,
                    max_positions=self.max_model_len,
                )
        with torch.inference_mode():
            for layer, layout in zip(self.model.attention_layers, layouts, strict=True):
                layer.bind(layout, kernels.allocate_kv_cache(layout, self.num_blocks))
            for recurrent in self.model.recurrent_layers:
                recurrent.bind_states(self.num_states, self.dtype)
            self.decode = RecordedDecode(
                self.model, max_blocks=-(-self.max_model_len // self.block_size), block_size=self.block_size
            )
        release(mapped_spans(source.checkpoint.files()))

    def _slots(self, config: EngineConfig) -> AdapterSlots | None:
        """Room for LoRA adapters, which a model takes when it is built."""
        if not config.enable_lora:
            return None
        if self.model_config.is_encoder:
            raise RequestError("enable_lora: an encoder takes no adapters here")
        dtype = self.dtype if has_torch_product(self.dtype) else torch.float32
        return AdapterSlots(config.max_loras, config.max_lora_rank, dtype, self.dtype)

    def _check(
        self,
        config: EngineConfig,
        architecture: type[Model],
        source: WeightSource,
        slots: AdapterSlots | None,
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
        try:
            layouts = [
                layer.cache_layout(self.dtype, self.block_size, self.cache_dtype)
                for layer in model.attention_layers
            ]
        except ValueError as error:
            raise RequestError(f"no attention kernel for this model: {error}") from None
        block_bytes = sum(layout.block_bytes for layout in layouts)
        self.num_states = 0
        if self.model_config.is_encoder:  # nothing is cached: blocks only count tokens
            self._left_beside(inventory.num_bytes)
            self.num_blocks = -(-self.max_model_len // self.block_size) * config.max_num_seqs
        elif self._ranks is not None and self._ranks.rank and config.num_gpu_blocks_override is not None:
            self.num_blocks = config.num_gpu_blocks_override  # rank 0 has counted them, for all
        else:
            left = self._left_beside(inventory.num_bytes + (0 if slots is None else slots.num_bytes))
            state_bytes = self._take_states(config, model, left)
            self.num_blocks = self._count_blocks(config, block_bytes, left - state_bytes)
        self.cache_bytes = self.num_blocks * block_bytes * self._num_ranks
        return inventory, layouts

    def _take_states(self, config: EngineConfig, model: Model, left: int) -> int:
        """Decide how many states there are; return their bytes, at most half of what the cache may take.

        There is one for every sequence that may run, and as many for snapshots of prefixes.
        """
        parts = [part for layer in model.recurrent_layers for part in layer.state_shapes(self.dtype)]
        if not parts:
            return 0
        state_bytes = sum(part.num_bytes for part in parts)
        space = environment.kv_cache_bytes()
        budget = (int(left * SHARE_FOR_KV_CACHE) if space is None else min(space, left)) // 2
        wanted = config.max_num_seqs * (2 if config.enable_prefix_caching else 1)
        self.num_states = min(wanted, budget // state_bytes)
        if self.num_states < 1:
            raise MemoryLimitError(
                f"the states of the recurrent layers take {readable(state_bytes)} each, and half of"
                f" the cache's memory is {readable(max(0, budget))}"
            )
        logger.info("%d states of recurrent layers, %s each", self.num_states, readable(state_bytes))
        return self.num_states * state_bytes

    def copy_states(self, copies: Sequences[tuple[int | None, int]]) -> None:
        """Copy states from slot to slot, in order; without a source, clear the slot."""
        with torch.inference_mode():
            for source, target in copies:
                for layer in self.model.recurrent_layers:
                    layer.copy_state(source, target)

    def _left_beside(self, weight_bytes: int) -> int:
        """Bytes of memory for the KV cache of each rank; MemoryLimitError if the weights don't fit."""
        replicas, of_node = environment.replicas()
        left = available_memory(self._node, share=self._num_ranks * replicas, node_share=of_node)
        if self._num_ranks > 1:  # all have the embedding
            table = self.model_config.vocab_size * self.model_config.hidden_size * self.dtype.itemsize
            weight_bytes = (weight_bytes - table) // self._num_ranks + table
        if weight_bytes > left:
            of_rank = " of each rank" if self._num_ranks > 1 else ""
            raise MemoryLimitError(
                f"the weights{of_rank} take {readable(weight_bytes)} as {self.dtype},"
                f" and {readable(left)} of memory are left"
            )
        return left - weight_bytes

    def _count_blocks(self, config: EngineConfig, block_bytes: int, left: int) -> int:
        """How many blocks of ``block_bytes`` (all layers together) the KV cache gets of ``left`` bytes."""
        needed = -(-self.max_model_len // self.block_size)
        if config.num_gpu_blocks_override is not None:
            num_blocks, origin = config.num_gpu_blocks_override, "num_gpu_blocks_override"
        elif not block_bytes:  # no layer has attention: blocks only count tokens
            return needed * config.max_num_seqs
        elif (space := environment.kv_cache_bytes()) is not None:
            num_blocks, origin = space // block_bytes, "VLLM_CPU_KVCACHE_SPACE"
        else:
            # No more than max_num_seqs sequences can use: a small model need not take all memory.
            affordable = int(left * SHARE_FOR_KV_CACHE) // block_bytes
            num_blocks, origin = min(affordable, needed * config.max_num_seqs), "the memory that is left"
        fits = num_blocks * self.block_size
        if self._fits_cache and 0 < num_blocks < needed:
            logger.info("max_model_len auto: %d, which the KV cache can hold", fits)
            self.max_model_len, needed = fits, num_blocks
        if num_blocks < needed:
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
    def run(
        self,
        sequences: Sequences[Sequence],
        alone: Callable[[Sequence], AbstractContextManager[None]] = lambda _: nullcontext(),
    ) -> Tensor:
        """Compute the scheduled tokens; fp32 logits ``[R, vocab_size]`` of the R sequences that sample.

        Sequences with a reader show it what it wants to see of the hidden states, within ``alone(sequence)``.
        """
        adapters = [sequence.adapter for sequence in sequences]
        if self._ranks is None and not any(adapters) and self.decode.takes(sequences):
            with torch_threads(few=self.own_products):
                return self.decode.run(sequences)
        counts = [_num_rows(sequence) for sequence in sequences]
        scheduled = [sequence.num_scheduled_tokens for sequence in sequences]
        with nullcontext() if self.slots is None else self.slots.applied(adapters, scheduled, counts):
            hidden = self._compute(self._prepare(sequences, counts))
        ends = np.cumsum(counts)
        for sequence, count, end in zip(sequences, counts, ends, strict=True):
            if count and sequence.reader is not None:
                first = sequence.num_computed_tokens + sequence.num_scheduled_tokens - count
                with alone(sequence):
                    sequence.reader.read(first, hidden[end - count : end], self._compute)
        # an error of a reader finishes all sequences of its request
        sampling = [
            end - 1
            for sequence, end in zip(sequences, ends.tolist(), strict=True)
            if sequence.samples_next and not sequence.finished
        ]
        return self._compute(hidden if len(sampling) == len(hidden) else hidden[sampling])

    def _compute(self, x: StepInput | Tensor) -> Tensor:
        """The final hidden states of a step, or the logits of hidden states, by all ranks."""
        if self._ranks is None:
            return self._compute_own(x)
        try:
            self._ranks.send(_written(x))
            return self._compute_own(x)
        except BaseException:
            self._ranks.fail(INTERRUPTED)  # the others wait for this one within the step
            raise

    @torch.inference_mode()
    def follow(self, message: bytes) -> None:
        """Do this rank's part of what rank 0 computes."""
        self._compute_own(_read(message))

    def _compute_own(self, x: StepInput | Tensor) -> Tensor:
        elements = len(x) * self.model_config.vocab_size if isinstance(x, Tensor) else 0
        few = self.own_products and not self.model_config.is_encoder  # whose attention is torch's
        with torch_threads(few=few, elements=elements):
            if isinstance(x, Tensor):
                return self.model.logits(x)
            places = self.model.places(x.positions, x.total_lens)
            return self.model(x.token_ids, places, x.metadata, x.rows)

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
        seconds = np.array([_second_segment(sequence) for sequence in sequences])
        slots = np.array([sequence.state_slot for sequence in sequences])
        token_types = positions >= seconds[of_sequence]
        blocks = block_tables[of_sequence, positions // self.block_size].astype(np.int64)
        return StepInput(
            token_ids=torch.from_numpy(token_ids),
            positions=torch.from_numpy(positions),
            total_lens=torch.from_numpy(totals[of_sequence]),
            rows=None
            if sum(num_rows) == ends[-1]
            else torch.from_numpy(_last_rows(ends, np.array(num_rows))),
            metadata=AttentionMetadata(
                slot_mapping=torch.from_numpy(blocks * self.block_size + positions % self.block_size),
                block_tables=torch.from_numpy(block_tables),
                query_start_loc=torch.from_numpy(query_start_loc),
                seq_lens=torch.from_numpy((starts + counts).astype(np.int32)),
                state_slots=torch.from_numpy(slots) if self.num_states else None,
                token_types=torch.from_numpy(token_types.astype(np.int64)) if token_types.any() else None,
            ),
        )


def _num_rows(sequence: Sequence) -> int:
    """How many of the scheduled tokens, counted from the last, have a final state that someone looks at."""
    return sequence.num_scheduled_tokens if sequence.needs_every_token else int(sequence.reaches_end)


def _second_segment(sequence: Sequence) -> int:
    """Where the second text of a pair begins; where there is none, behind the end."""
    return sequence.num_tokens if sequence.second_segment is None else sequence.second_segment


def _last_rows(ends: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The ``counts[i]`` numbers below ``ends[i]`` for each i, in order."""
    stops = np.cumsum(counts)
    return np.arange(stops[-1]) + np.repeat(ends - stops, counts)


def _written(x: StepInput | Tensor) -> bytes:
    """For `_read` at another rank."""
    if isinstance(x, Tensor):
        content: tuple[Any, ...] = (x.dtype, x.shape[1], x.contiguous().view(torch.uint8).numpy())
    else:
        metadata = x.metadata
        tensors = [x.token_ids, x.positions, x.total_lens, x.rows, metadata.slot_mapping]
        tensors += [metadata.block_tables, metadata.query_start_loc, metadata.seq_lens]
        content = tuple(None if tensor is None else tensor.numpy() for tensor in tensors)
    return pickle.dumps(content, pickle.HIGHEST_PROTOCOL)


def _read(message: bytes) -> StepInput | Tensor:
    content = pickle.loads(message)  # noqa: S301 - our own
    if isinstance(content[0], torch.dtype):
        dtype, width, values = content
        return torch.from_numpy(values).view(dtype).view(-1, width)
    tensors: list[Any] = [None if array is None else torch.from_numpy(array) for array in content]
    token_ids, positions, total_lens, rows, slot_mapping, block_tables, query_start_loc, seq_lens = tensors
    metadata = AttentionMetadata(
        slot_mapping=slot_mapping,
        block_tables=block_tables,
        query_start_loc=query_start_loc,
        seq_lens=seq_lens,
    )
    return StepInput(
        token_ids=token_ids, positions=positions, total_lens=total_lens, rows=rows, metadata=metadata
    )
