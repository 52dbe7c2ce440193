"""What the engine asks of a back end, and the tensors of each step."""

from __future__ import annotations

import abc
import dataclasses
import functools
import itertools
import logging
from contextlib import nullcontext
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from armllm import environment
from armllm.engine.memory import SHARE_FOR_KV_CACHE, available_memory, readable
from armllm.errors import MemoryLimitError, RequestError
from armllm.layers.attention import AttentionMetadata

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from collections.abc import Sequence as Sequences
    from contextlib import AbstractContextManager

    import numpy.typing as npt

    from armllm.checkpoint.adapter import MatrixShape
    from armllm.checkpoint.config import ModelConfig
    from armllm.engine.config import EngineConfig
    from armllm.engine.pictures import Picture
    from armllm.engine.sequence import Sequence
    from armllm.engine.stats import LoadReport
    from armllm.layers.lora import AdapterSlots
    from armllm.models import Model

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StepInput:
    """The scheduled tokens of all sequences in a row.

    ``rows``: those whose final state is looked at; None: all. ``total_lens`` int64 [T]: all tokens of each
    token's sequence, those of later steps included. positions int64 [T], or [3, T] where pictures are among
    them, of which ``pictures`` holds the first row, the picture, and which of its tokens.
    """

    token_ids: Tensor
    positions: Tensor
    total_lens: Tensor
    rows: Tensor | None
    metadata: AttentionMetadata
    pictures: Sequences[tuple[int, Picture, slice]] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flight:
    """A step that was started. result: its hidden states.

    counts: rows of the hidden states that each sequence wants. releases: how often each had given its blocks
    back; where it did so since, its rows are of no use.
    """

    sequences: Sequences[Sequence]
    counts: Sequences[int]
    result: Callable[[], Tensor]
    releases: Sequences[int]

    def live(self) -> list[Sequence]:
        """The sequences that still want their rows."""
        return [
            sequence
            for sequence, releases in zip(self.sequences, self.releases, strict=True)
            if sequence.num_releases == releases and not sequence.finished
        ]


class Runner(abc.ABC):
    """A loaded model with its KV cache. Back ends differ in how they load, and in `_compute`.

    dtype, cache_dtype: of the computation and of the KV cache, which has ``num_blocks`` blocks of
    ``block_size`` tokens, ``cache_bytes`` in all. own_products: torch multiplies nothing.
    slots: room for LoRA adapters. adapter_shapes: as `AdapterSlots.shapes`, of the whole model.
    num_states: of recurrent layers. model: for what pools its states otherwise than by their mean or place.
    num_steps: the most that are on their way at the same time.
    """

    model_config: ModelConfig
    max_model_len: int
    block_size: int
    num_blocks: int
    cache_bytes: int
    dtype: torch.dtype
    cache_dtype: torch.dtype
    own_products: bool
    load_report: LoadReport
    slots: AdapterSlots | None = None
    adapter_shapes: Mapping[str, MatrixShape] = {}
    model: Model | None = None
    num_states = 0
    num_steps = 1
    _node: int | None = None
    _num_ranks = 1
    _num_sharing = 1  # processes that load at the same time on this machine
    _fits_cache = False
    _numbers: tuple[Tensor | None, npt.NDArray[np.float32] | None] = None, None  # the same logits twice

    @functools.cached_property
    def _no_logits(self) -> Tensor:
        return torch.empty(0, self.model_config.vocab_size)

    @abc.abstractmethod
    def computed_by(self) -> str:
        """What computes, for people: a name and its versions or variants."""

    @abc.abstractmethod
    def copy_states(self, copies: Sequences[tuple[int | None, int]]) -> None:
        """Copy states of recurrent layers from slot to slot, in order; without a source, clear the slot."""

    @abc.abstractmethod
    def _compute(self, x: StepInput | Tensor) -> Tensor:
        """Final hidden states ``[R, hidden_size]`` of a step's rows; fp32 logits of hidden states."""

    def numbers(self, logits: Tensor) -> npt.NDArray[np.float32]:
        """What `run` returned, for numpy: torch takes up to a tenth of a ms where it is another tensor."""
        known, numbers = self._numbers
        if numbers is None or known is not logits:
            numbers = logits.numpy()
            self._numbers = logits, numbers
        return numbers

    def _run_recorded(self, sequences: Sequences[Sequence]) -> Tensor | None:  # noqa: ARG002 - for those that can
        """What `run` returns, where the back end has a shorter way for such a step."""
        return None

    def _limit_length(self, config: EngineConfig) -> None:
        """Decide max_model_len, or RequestError says why the options' is too long."""
        longest = self.model_config.max_model_len
        self._fits_cache = config.max_model_len == -1
        wanted = None if self._fits_cache else config.max_model_len
        self.max_model_len = wanted or min(longest, self.model_config.default_model_len or longest)
        if self.max_model_len > self.model_config.max_model_len:
            raise RequestError(
                f"max_model_len {self.max_model_len} is above {self.model_config.max_model_len}, to which"
                " max_position_embeddings, its rope scaling or sparse_config in config.json limit it"
            )
        if wanted is None and config.num_gpu_blocks_override is not None:
            self.max_model_len = min(self.max_model_len, config.num_gpu_blocks_override * config.block_size)

    def _left_beside(self, weight_bytes: int) -> int:
        """Bytes of memory for the KV cache of each rank; MemoryLimitError if the weights don't fit."""
        replicas, of_node = environment.replicas()
        left = available_memory(self._node, share=self._num_sharing * replicas, node_share=of_node)
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
        space, asked = config.kv_cache_space()
        if config.num_gpu_blocks_override is not None:
            num_blocks, origin = config.num_gpu_blocks_override, "num_gpu_blocks_override"
        elif not block_bytes:  # no layer has attention: blocks only count tokens
            return needed * config.max_num_seqs
        elif space is not None:
            num_blocks, origin = space // block_bytes, asked
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

    def run(
        self,
        sequences: Sequences[Sequence],
        alone: Callable[[Sequence], AbstractContextManager[None]] = lambda _: nullcontext(),
    ) -> Tensor:
        """Compute the scheduled tokens; fp32 logits ``[R, vocab_size]`` of the R sequences that sample.

        Sequences with a reader show it what it wants to see of the hidden states, within ``alone(sequence)``.
        """
        recorded = self._run_recorded(sequences)
        return self.land(self.start(sequences), alone) if recorded is None else recorded

    def start(self, sequences: Sequences[Sequence]) -> Flight:
        """Begin to compute the scheduled tokens; steps land in the order in which they are started."""
        releases = [sequence.num_releases for sequence in sequences]
        adapters = [sequence.adapter for sequence in sequences]
        counts = [_num_rows(sequence) for sequence in sequences]
        scheduled = [sequence.num_scheduled_tokens for sequence in sequences]
        with nullcontext() if self.slots is None else self.slots.applied(adapters, scheduled, counts):
            result = self._begin(self._prepare(sequences, counts))
        return Flight(sequences=sequences, counts=counts, result=result, releases=releases)

    def land(
        self,
        flight: Flight,
        alone: Callable[[Sequence], AbstractContextManager[None]] = lambda _: nullcontext(),
    ) -> Tensor:
        """What `run` returns, of a step that was started: logits of its live sequences that sample."""
        hidden = flight.result()
        live, sampling, end = set(flight.live()), [], 0
        are_read = any(sequence.reader is not None for sequence in flight.sequences)
        parts = iter(hidden.split_with_sizes(list(flight.counts))) if are_read else itertools.repeat(hidden)
        for sequence, count, own in zip(flight.sequences, flight.counts, parts, strict=False):
            end += count
            if sequence not in live:
                continue
            if count and sequence.reader is not None:
                first = sequence.num_computed_tokens + sequence.num_scheduled_tokens - count
                with alone(sequence):
                    sequence.reader.read(first, own, self._compute)
            if sequence.samples_next:
                sampling.append((sequence, end - 1))
        # an error of a reader finishes all sequences of its request
        wanted = [row for sequence, row in sampling if not sequence.finished]
        if not wanted:
            return self._no_logits
        return self._compute(hidden if len(wanted) == len(hidden) else hidden[wanted])

    def _begin(self, x: StepInput) -> Callable[[], Tensor]:
        """Begin to compute final hidden states, which what it returns will return."""
        hidden = self._compute(x)
        return lambda: hidden

    def _prepare(self, sequences: Sequences[Sequence], num_rows: Sequences[int]) -> StepInput:
        """The tensors of a step; of each sequence the last ``num_rows`` tokens' states are wanted."""
        counts = np.array([sequence.num_scheduled_tokens for sequence in sequences])
        starts = np.array([sequence.num_computed_tokens for sequence in sequences])
        totals = np.array([sequence.num_tokens for sequence in sequences])
        ends = np.cumsum(counts)
        query_start_loc = np.zeros(len(sequences) + 1, dtype=np.int32)
        query_start_loc[1:] = ends
        of_sequence = np.repeat(np.arange(len(sequences)), counts)
        positions = np.arange(ends[-1]) + (starts - query_start_loc[:-1])[of_sequence].astype(np.int64)
        block_tables = np.zeros((len(sequences), max(len(s.block_table) for s in sequences)), dtype=np.int32)
        token_ids = np.empty(ends[-1], dtype=np.int64)
        for row, sequence in enumerate(sequences):
            block_tables[row, : len(sequence.block_table)] = sequence.block_table
            first = sequence.num_computed_tokens
            token_ids[query_start_loc[row] : ends[row]] = sequence.token_ids[
                first : first + sequence.num_scheduled_tokens
            ]
        blocks = block_tables[of_sequence, positions // self.block_size].astype(np.int64)
        slot_mapping = blocks * self.block_size + positions % self.block_size
        token_types = _token_types(sequences, positions, of_sequence)
        positions, pictures = _with_pictures(positions, sequences, query_start_loc)
        return StepInput(
            token_ids=torch.from_numpy(token_ids),
            positions=torch.from_numpy(positions),
            total_lens=torch.from_numpy(totals[of_sequence]),
            rows=None
            if sum(num_rows) == ends[-1]
            else torch.from_numpy(_last_rows(ends, np.array(num_rows))),
            metadata=AttentionMetadata(
                slot_mapping=torch.from_numpy(slot_mapping),
                block_tables=torch.from_numpy(block_tables),
                query_start_loc=torch.from_numpy(query_start_loc),
                seq_lens=torch.from_numpy((starts + counts).astype(np.int32)),
                state_slots=torch.tensor([s.state_slot for s in sequences]) if self.num_states else None,
                token_types=token_types,
            ),
            pictures=pictures,
        )


def _with_pictures(
    positions: npt.NDArray[np.int64], sequences: Sequences[Sequence], starts: npt.NDArray[np.int32]
) -> tuple[npt.NDArray[np.int64], list[tuple[int, Picture, slice]]]:
    """Positions as pictures change them, of three axes if one is in this step, and what there is of each."""
    found: list[tuple[int, Picture, slice]] = []
    if not any(sequence.pictures is not None for sequence in sequences):
        return positions, found
    if any(sequence.in_pictures for sequence in sequences):
        positions = np.tile(positions, (3, 1))
    for start, sequence in zip(starts.tolist(), sequences, strict=False):
        if sequence.pictures is None:
            continue
        first = sequence.num_computed_tokens
        end = first + sequence.num_scheduled_tokens
        places = sequence.pictures.places(first, end)
        positions[..., start : start + end - first] = places if positions.ndim == 2 else places[0]
        for picture in sequence.pictures.within(first, end):
            own = slice(max(first, picture.first), min(end, picture.end))
            part = slice(own.start - picture.first, own.stop - picture.first)
            found.append((start + own.start - first, picture, part))
    return positions, found


def _num_rows(sequence: Sequence) -> int:
    """How many of the scheduled tokens, counted from the last, have a final state that someone looks at."""
    return sequence.num_scheduled_tokens if sequence.needs_every_token else int(sequence.reaches_end)


def _token_types(
    sequences: Sequences[Sequence], positions: npt.NDArray[np.int64], of_sequence: npt.NDArray[np.int64]
) -> Tensor | None:
    """1 for tokens of the second text of a pair, else 0; None if all are 0."""
    if all(sequence.second_segment is None for sequence in sequences):
        return None
    seconds = np.array([s.num_tokens if s.second_segment is None else s.second_segment for s in sequences])
    second = positions >= seconds[of_sequence]
    return torch.from_numpy(second.astype(np.int64)) if second.any() else None


def _last_rows(ends: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The ``counts[i]`` numbers below ``ends[i]`` for each i, in order."""
    stops = np.cumsum(counts)
    return np.arange(stops[-1]) + np.repeat(ends - stops, counts)
