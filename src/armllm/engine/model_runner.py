"""A model of our own layers and kernels, and its KV cache."""

from __future__ import annotations

import logging
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, NamedTuple, cast

import torch
from torch import Tensor

from armllm import kernels
from armllm.checkpoint.mapping import release
from armllm.engine.decode_inputs import DECODE
from armllm.engine.loading import load_model
from armllm.engine.memory import SHARE_FOR_KV_CACHE, readable
from armllm.engine.messages import Message, adapter_of, as_message, read_bytes, written
from armllm.engine.pipeline import FILLS, Pipeline, Room
from armllm.engine.placement import torch_threads
from armllm.engine.recorded_texts import RecordedTexts
from armllm.engine.recording import RecordedDecode
from armllm.engine.runner import Runner, StepInput
from armllm.errors import MemoryLimitError, RequestError
from armllm.layers.attention import AttentionMetadata
from armllm.layers.cpu import has_own_products
from armllm.layers.lora import AdapterSlots, building_with
from armllm.layers.ranks import INTERRUPTED, building_for
from armllm.layers.stages import Stage, building_stage
from armllm.models import check_model
from armllm.utils.malloc import keep_freed_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from collections.abc import Sequence as Sequences
    from contextlib import AbstractContextManager

    from armllm._kernels import Ranks
    from armllm.checkpoint.config import ModelConfig
    from armllm.checkpoint.weights import Inventory
    from armllm.engine.config import EngineConfig
    from armllm.engine.loading import WeightSource
    from armllm.engine.pipeline import StageEnd
    from armllm.engine.sequence import Sequence
    from armllm.kernels import KVCacheLayout
    from armllm.models import Model, Seeing, StagedModel
    from armllm.models.encoder import Encoder

logger = logging.getLogger(__name__)


class Part(NamedTuple):
    """Which part of a model a process computes: rows of all products, or some layers; else all of it.

    node: the NUMA node whose memory is used. ranks, end: the processes that compute the model together.
    num_states: of recurrent layers, as rank 0 has counted them.
    """

    node: int | None = None
    ranks: Ranks | None = None
    end: StageEnd | None = None
    num_states: int = 0

    @property
    def stage(self) -> Stage:
        """Which of the layers."""
        return Stage() if self.end is None else self.end.stage


WHOLE = Part()


class ModelRunner(Runner):
    """Loads the weights of a source after checking all of it, makes the KV cache, and runs steps.

    ``checked`` is called with the runner before it loads.
    """

    model: Model

    def __init__(
        self,
        config: EngineConfig,
        architecture: type[Model],
        model_config: ModelConfig,
        source: WeightSource,
        part: Part = WHOLE,
        *,
        checked: Callable[[ModelRunner], None] = lambda _: None,
    ) -> None:
        self.model_config = model_config
        self._node, self._ranks, self._end, self.num_states = part
        self._num_ranks = 1 if part.ranks is None else part.ranks.size
        self._num_sharing = max(self._num_ranks, part.stage.local)
        self._copies: list[tuple[int | None, int]] = []  # of states, before the next step
        self._limit_length(config)
        self.block_size = config.block_size
        self.dtype = config.torch_dtype
        self.cache_dtype = config.cache_dtype
        kernels.set_num_threads(torch.get_num_threads())
        self.own_products = has_own_products(self.dtype)
        kernels.use_own_threads(self.own_products)
        # With several steps on their way, others share a step. Then torch's products may have other bits, and
        # in fp32 attention has: it sums by how many tokens of a prompt it sees.
        if self.own_products and self.dtype is not torch.float32:
            self.num_steps = part.stage.size
        with building_for(part.ranks), building_stage(part.stage):
            with building_with(planned := self._slots(config)):
                inventory, layouts = self._check(config, architecture, source, planned)
            self.adapter_shapes = {} if planned is None else planned.shapes()  # of all stages
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
        if self._end is not None:
            self._agree(self._end, layouts)
        with torch.inference_mode():
            self._allocate(layouts)
            self.decode = RecordedDecode(
                self.model,
                max_blocks=-(-self.max_model_len // self.block_size),
                block_size=self.block_size,
                slots=self.slots,
            )
        alone = self._ranks is None and self._end is None
        self.texts = RecordedTexts(cast("Encoder", self.model)) if model_config.is_encoder and alone else None
        leads = isinstance(self._end, Pipeline) or (self._ranks is not None and not self._ranks.rank)
        if self.slots is not None and leads:
            self.slots.on_fill = lambda slot, adapter: self._tell({FILLS: slot} | as_message(adapter))
        release(source.checkpoint.spans())

    def _allocate(self, layouts: list[KVCacheLayout]) -> None:
        """What layers keep between steps; what is allocated after it is of one step."""
        for layer, layout in zip(self.model.attention_layers, layouts, strict=True):
            layer.bind(layout, kernels.allocate_kv_cache(layout, self.num_blocks))
        for recurrent in self.model.recurrent_layers:
            recurrent.bind_states(self.num_states, self.dtype)
        keep_freed_memory()

    def _agree(self, end: StageEnd, layouts: list[KVCacheLayout]) -> None:
        """Have as many blocks and states as all stages can hold."""
        block_bytes = sum(layout.block_bytes for layout in layouts)
        room = end.agree(
            Room(num_blocks=self.num_blocks, block_bytes=block_bytes, num_states=self.num_states)
        )
        self.num_blocks, self.num_states = room.num_blocks, room.num_states
        self.cache_bytes = room.num_blocks * room.block_bytes

    def _slots(self, config: EngineConfig) -> AdapterSlots | None:
        """Room for LoRA adapters, which a model takes when it is built."""
        if not config.enable_lora:
            return None
        if self.model_config.is_encoder:
            raise RequestError("enable_lora: an encoder takes no adapters here")
        return AdapterSlots(config.max_loras, config.max_lora_rank, self.dtype)

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
        space, _ = config.kv_cache_space()
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
        """As `Runner`'s."""
        if isinstance(self._end, Pipeline) or (self._ranks is not None and not self._ranks.rank):
            self._copies += copies
        for source, target in copies:
            for layer in self.model.recurrent_layers:
                layer.copy_state(source, target)

    def computed_by(self) -> str:
        """The targets of our kernels."""
        return ", ".join(sorted({entry["target"] for entry in kernels.report().values()}))

    def _run_recorded(self, sequences: Sequences[Sequence]) -> Tensor | None:
        if self._end is not None or not self.decode.takes(sequences):
            return None
        with torch_threads(few=self.own_products):
            if self._ranks is None:
                return self.decode.run(sequences)
            with self._unless_interrupted(self._ranks):
                return self.decode.run(sequences, self._tell)

    def _begin(self, x: StepInput) -> Callable[[], Tensor]:
        """Begin a step, which other stages go on with."""
        if not isinstance(self._end, Pipeline):
            return super()._begin(x)
        pipeline = self._end
        message = self._step_message(x)
        try:
            pipeline.start(message, self._advance(x, ()))
        except BaseException:
            pipeline.fail(INTERRUPTED)  # steps that are on their way would land as later ones
            raise

        def result() -> Tensor:
            try:
                return pipeline.result()[0]
            except BaseException:
                pipeline.fail(INTERRUPTED)
                raise

        return result

    @torch.inference_mode()
    def follow_stage(self, message: Message, states: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Go on with a step, from what the stage before this one has made of it; or fill a slot."""
        if self._fills(message):
            return ()
        with self._adapted(message):
            return self._advance(_step(message), states)

    def _compute(self, x: StepInput | Tensor) -> Tensor:
        """The final hidden states of a step, or the logits of hidden states, by all ranks."""
        if self._ranks is None:
            return self._compute_own(x)
        with self._unless_interrupted(self._ranks):
            self._tell(
                {"hidden": x} | self._adapter_rows() if isinstance(x, Tensor) else self._step_message(x)
            )
            return self._compute_own(x)

    @staticmethod
    @contextmanager
    def _unless_interrupted(ranks: Ranks) -> Iterator[None]:
        """Stop all ranks where what is within fails: the others wait for this one in the step."""
        try:
            yield
        except BaseException:
            ranks.fail(INTERRUPTED)
            raise

    def _tell(self, message: Message) -> None:
        """Send the other ranks, or stages, what is next."""
        if isinstance(self._end, Pipeline):
            self._end.tell(message)
            return
        assert self._ranks is not None  # noqa: S101 - else there is nobody
        with self._unless_interrupted(self._ranks):
            self._ranks.send(b"".join(written(message)))

    @torch.inference_mode()
    def follow(self, data: bytes) -> None:
        """Do this rank's part of what rank 0 computes, or let a slot hold an adapter as rank 0 does."""
        message = read_bytes(data)
        if self._fills(message):
            return
        if DECODE in message:
            with torch_threads(few=self.own_products):
                self.decode.follow(message)
            return
        own = message["hidden"] if "hidden" in message else _step(message)
        with self._adapted(message):
            self._compute_own(own)

    def _step_message(self, x: StepInput) -> Message:
        """A step, and which states are copied before it."""
        copies, self._copies = self._copies, []
        return _message(x) | self._adapter_rows() | ({"copies": copies} if copies else {})

    def _adapter_rows(self) -> Message:
        """For `_adapted` in another process."""
        rows = {} if self.slots is None else self.slots.rows
        return {f"{ADAPTERS}{count}": slots for count, slots in rows.items()}

    def _adapted(self, message: Message) -> AbstractContextManager[None]:
        """A step within has states and rows with adapters as rank 0 says."""
        self.copy_states([(source, target) for source, target in message.get("copies", ())])
        rows = {
            int(name.removeprefix(ADAPTERS)): slots
            for name, slots in message.items()
            if name.startswith(ADAPTERS)
        }
        return nullcontext() if self.slots is None or not rows else self.slots.applied_rows(rows)

    def _fills(self, message: Message) -> bool:
        """Whether it has been about a slot, which now holds an adapter as rank 0's does."""
        if FILLS not in message:
            return False
        assert self.slots is not None  # noqa: S101 - rank 0 has them
        self.slots.fill(message[FILLS], adapter_of(message))
        return True

    def _compute_own(self, x: StepInput | Tensor) -> Tensor:
        if not isinstance(x, Tensor):
            with self._threads():
                places = self.model.places(x.positions, x.total_lens)
                if x.pictures:
                    model = cast("Seeing", self.model)
                    embedded = _embed(model, x)  # a branch, with nothing in the sum yet
                    states = embedded, torch.zeros_like(embedded)
                    return model.advance(states, x.token_ids, places, x.metadata, x.rows)[0]
                found = None if self.texts is None else self.texts.run(x, places)
                return self.model(x.token_ids, places, x.metadata, x.rows) if found is None else found
        with self._threads(len(x) * self.model_config.vocab_size):
            return self.model.logits(x)

    def _advance(self, x: StepInput, states: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The layers of this stage."""
        model = cast("StagedModel", self.model)
        with self._threads():
            if self.decode.takes_input(x):
                return self.decode.advance(x, states)
            places = model.places(x.positions, x.total_lens)
            return model.advance(states, x.token_ids, places, x.metadata, x.rows)

    def _threads(self, elements: int = 0) -> AbstractContextManager[None]:
        return torch_threads(few=self.own_products, elements=elements)


def _embed(model: Seeing, x: StepInput) -> Tensor:
    """What the first layer sees of a step with pictures; each picture is computed as a whole, once."""
    embedded = model.embed(x.token_ids)
    for row, picture, part in x.pictures:
        if picture.states is None:
            assert picture.pixels is not None  # noqa: S101 - one of both is there
            picture.states = model.embed_picture(picture.pixels, picture.height, picture.width)
            picture.pixels = None
        embedded[row : row + part.stop - part.start] = picture.states[part]
    return embedded


ADAPTERS = "adapters."  # and a number of rows: the slot of each
OF_SEQUENCES = ("block_tables", "query_start_loc", "seq_lens")


def _message(x: StepInput) -> Message:
    """For `_step` in another process."""
    metadata = x.metadata
    message: Message = {
        "tokens": torch.stack((x.token_ids, x.positions, x.total_lens, metadata.slot_mapping))
    } | {name: getattr(metadata, name) for name in OF_SEQUENCES}
    optional = {"rows": x.rows, "state_slots": metadata.state_slots}
    return message | {name: value for name, value in optional.items() if value is not None}


def _step(message: Message) -> StepInput:
    token_ids, positions, total_lens, slot_mapping = message["tokens"]
    of_sequences = {name: message[name] for name in OF_SEQUENCES}
    slots = message.get("state_slots")
    metadata = AttentionMetadata(slot_mapping=slot_mapping, state_slots=slots, **of_sequences)
    rows = message.get("rows")
    return StepInput(
        token_ids=token_ids, positions=positions, total_lens=total_lens, rows=rows, metadata=metadata
    )
