"""Steps of short texts by an encoder, without Python between their ops (see `engine.recording`)."""

from __future__ import annotations

import logging
from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from armllm.engine.recording import Buffers, Recorder
from armllm.layers.attention import AttentionMetadata

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from armllm.engine.runner import StepInput
    from armllm.models.encoder import Encoder

logger = logging.getLogger(__name__)

MOST_TOKENS = 1024  # beyond, Python's share of a step is small
MOST_RECORDINGS = 64
MOST_SEEN = 1024
REPLAYS_FOR_ONE = 16  # they save about what it takes to record a step
Key = tuple[int, int, int]  # sequences, tokens, rows


class Places(NamedTuple):
    """Where a recording reads its inputs."""

    token_ids: Tensor
    places: Tensor
    rows: Tensor | None
    metadata: AttentionMetadata


class Recording(NamedTuple):
    """As `engine.recording.Recording`; result: the final hidden states."""

    inputs: Places
    ops: list[Callable[[], Any]]
    constants: list[Tensor]
    result: Tensor


class RecordedTexts:
    """Runs steps of so many texts and tokens as there were before; ``refused`` says why it no longer tries.

    What they return is valid until the next step.

    The second step of a kind is recorded: most kinds of larger steps never come again. When so many are held,
    replays must pay for another one: texts of too many lengths would only drive out each other's recordings.
    """

    def __init__(self, model: Encoder) -> None:
        self.most_tokens = MOST_TOKENS
        self.refused: str | None = None
        self.recordings: OrderedDict[Key, Recording] = OrderedDict()
        self.buffers = Buffers(MOST_TOKENS)
        self._model = model
        self._seen: OrderedDict[Key, None] = OrderedDict()
        self._tables: list[Tensor] = []  # those of the recordings
        self._credit = MOST_RECORDINGS * REPLAYS_FOR_ONE

    def run(self, x: StepInput, places: Tensor) -> Tensor | None:
        """Final hidden states of the rows that are wanted; None: this step is not recorded."""
        rows = -1 if x.rows is None else len(x.rows)
        key = (len(x.metadata.query_start_loc) - 1, len(x.token_ids), rows)
        if self.refused is not None or key[1] > self.most_tokens or x.metadata.token_types is not None:
            return None
        tables = [rotary.cos_sin_cache for rotary in self._model.rotaries]
        if len(tables) != len(self._tables) or any(map(_differ, tables, self._tables)):
            self.recordings.clear()  # they read the tables that were too short
            self._tables = tables
        found = self.recordings.get(key)
        if found is None and key not in self._seen:
            _hold(self._seen, key, None, MOST_SEEN)
            return None
        if found is None and self._credit < REPLAYS_FOR_ONE:
            return None
        inputs = self._places(key) if found is None else found.inputs
        inputs.token_ids.copy_(x.token_ids)
        inputs.places.copy_(self._model.places_among(x.token_ids, places, x.metadata))
        inputs.metadata.query_start_loc.numpy()[:] = x.metadata.query_start_loc.numpy()
        if inputs.rows is not None and x.rows is not None:
            inputs.rows.copy_(x.rows)
        if found is None:
            return self._record(key, inputs)
        self.recordings.move_to_end(key)
        self._credit = min(self._credit + 1, MOST_RECORDINGS * REPLAYS_FOR_ONE)
        for op in found.ops:
            op()
        return found.result

    @staticmethod
    def _places(key: Key) -> Places:
        sequences, tokens, rows = key
        nothing = torch.empty(0, dtype=torch.int32)  # there is no KV cache
        return Places(
            token_ids=torch.zeros(tokens, dtype=torch.int64),
            places=torch.zeros(tokens, dtype=torch.int64),
            rows=None if rows < 0 else torch.zeros(rows, dtype=torch.int64),
            metadata=AttentionMetadata(
                slot_mapping=nothing,
                block_tables=nothing,
                query_start_loc=torch.zeros(sequences + 1, dtype=torch.int32),
                seq_lens=nothing,
            ),
        )

    def _record(self, key: Key, inputs: Places) -> Tensor:
        self._credit -= REPLAYS_FOR_ONE
        recorder = Recorder(self.buffers, key[1])
        with recorder.record():
            result = self._model.encode(inputs.token_ids, inputs.places, inputs.metadata, inputs.rows)
        if recorder.refused is not None:
            self.refused = recorder.refused
            logger.info("steps of texts are not recorded: the model calls %s", self.refused)
            return result
        recording = Recording(inputs, recorder.ops, recorder.constants, self.buffers.alias(result))
        _hold(self.recordings, key, recording, MOST_RECORDINGS)
        return recording.result


def _differ(one: Tensor, other: Tensor) -> bool:
    return one is not other


def _hold(held: OrderedDict[Key, Any], key: Key, value: Any, most: int) -> None:
    """Add one, and let go of the oldest."""
    held[key] = value
    if len(held) > most:
        held.popitem(last=False)
