"""The engine's options, checked."""

from __future__ import annotations

import dataclasses
import functools
import logging
import math
from collections import Counter
from typing import TYPE_CHECKING, Any

import torch

from armllm import environment
from armllm.checkpoint.folder import open_checkpoint
from armllm.checkpoint.hub import WANTED_BY_OPENVINO, WITHOUT_WEIGHTS, HubOptions, resolve_model
from armllm.checkpoint.scheme import SCHEMES, check_scheme
from armllm.errors import RequestError
from armllm.foregone import foregone_options
from armllm.layers.cpu import cpu_computes_bfloat16, cpu_computes_float16
from armllm.quant.formats import METHODS

if TYPE_CHECKING:
    from pathlib import Path

logger = logging.getLogger(__name__)

DTYPES = {
    "float32": torch.float32,
    "float": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "half": torch.float16,
}
# What is computed in fp32 on a CPU without products in bf16; products in fp32 read FP8 as it is stored.
FLOAT32_WITHOUT_BF16 = ("F32", "F64", "F8_E4M3", "F8_E5M2")
# Offline, larger steps take less time in all; a server's are short, so that nobody waits long for a token.
USAGES = {
    "offline": {"max_num_seqs": 256, "max_num_batched_tokens": 4096},
    "server": {"max_num_seqs": 128, "max_num_batched_tokens": 2048, "max_logprobs": 20},
    "engine": {"max_num_seqs": 128, "max_num_batched_tokens": 2048},  # `LLMEngine` without `LLM`
}
MOST_PICTURES = 16  # of a prompt
MOST_RANKS = 64  # kMostRanks of the kernels
PARALLEL = ("tensor_parallel_size", "pipeline_parallel_size")
OPENVINO_BLOCK_SIZE = 32  # of its paged attention on CPUs
ALLOWED = {
    "backend": ("armllm", "openvino"),
    "scheduling_policy": ("fcfs", "priority"),
    "kv_cache_dtype": ("auto", "int8"),
    "load_format": ("auto", "safetensors", "hf", "dummy"),
    "generation_config": ("auto", "vllm"),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """The options of `LLM`, `AsyncLLM` and `armllm serve`. Names and meanings are vLLM's.

    - model: a folder with a Hugging Face checkpoint, a GGUF file, or a name on the hub.
    - tokenizer: another folder with a tokenizer.json.
    - revision, tokenizer_revision: a branch, tag or commit on the hub; default: main.
    - download_dir: the folder of downloads; default: ``$HF_HOME/hub``.
    - load_format: "auto" reads the checkpoint; "safetensors" and "hf" mean the same. "dummy" makes random
      weights from config.json, for measurements.
    - hf_token: for private and gated models; default: HF_TOKEN, or what ``hf auth login`` stored.
    - hf_overrides: values above those of config.json, such as ``{"rope_theta": 1e6}``. With
      ``{"architectures": ["Qwen3ForSequenceClassification"], "classifier_from_token": ["no", "yes"],
      "is_original_qwen3_reranker": True}`` a reranker that was published as a decoder makes scores.
    - limit_mm_per_prompt: the most pictures in a prompt, such as ``{"image": 4}``; default: 16.
    - skip_tokenizer_init: prompts and outputs are token ids only, without text.
    - dtype: "float32", "bfloat16", "float16", or "auto": bfloat16; float16 where most weights are in it and
      the CPU has products in it; float32 where most weights are in it or in FP8, and the CPU has no products
      in bfloat16. A log line says which, and why.
    - quantization: rounds weights while loading: "int8", "int8-g32", "int8-g64", "int8-g128", "int4",
      "int4-g32", "int4-g64", "int4-g128" or "int4-channelwise". For a quantized checkpoint it may be the
      name of its method.
    - calibration: a text of the kind that the model will see; it reduces the error of ``quantization``.
    - seed: the seed from which requests without a seed get theirs.
    - max_model_len: prompt and output tokens of a request; default: what the checkpoint allows, and what
      num_gpu_blocks_override can hold if it is set. "auto" or -1: as many of these as the KV cache holds.
    - kv_cache_dtype: "auto" stores keys and values in ``dtype``, "int8" in half of the memory or a quarter.
    - block_size: tokens per block of the KV cache.
      Default: 16, and 32 with OpenVINO, which has no other.
    - kv_cache_memory_bytes: the size of the KV cache of each process; VLLM_CPU_KVCACHE_SPACE stands above it.
    - num_gpu_blocks_override: the number of blocks, above both.
    - max_num_seqs, max_num_batched_tokens: the most sequences and tokens in a step; default: 256 and 4096
      for `LLM`, 128 and 2048 for `AsyncLLM` and the server, times the number of processes.
    - enable_prefix_caching: shares blocks between prompts that begin with the same tokens.
    - max_logprobs: the most log-probabilities per token that a request may ask for; default: 20 for
      `AsyncLLM` and the server, for `LLM` -1, which is no limit.
    - backend: "armllm" computes with our kernels, "openvino" with OpenVINO: an IR, or a checkpoint that is
      converted first.
    - tensor_parallel_size: processes that compute the model together, as on a machine of several NUMA nodes.
      `LLM` and the others take "auto" too: one for each node, where that pays. A log line says why.
    - pipeline_parallel_size: processes of which each has some of the layers.
    - nnodes: machines that compute the model, a stage on each. node_rank: the number of this one.
    - master_addr, master_port: where machine 0 waits for the others.
    - scheduling_policy: "fcfs" serves the first request first, "priority" the one with the lowest number.
    - generation_config: "auto" takes defaults of sampling from generation_config.json, "vllm" neutral ones.
    - override_generation_config: defaults that stand above it, such as ``{"temperature": 0.5}``.
    - enable_lora: requests may bring LoRA adapters.
    - max_loras: the most different adapters in a step. max_lora_rank: the greatest rank.
    - max_cpu_loras: the most adapters in memory, at least max_loras, which is the default. Those that
      running requests use are kept beside them.
    """

    model: str
    tokenizer: str | None = None
    revision: str | None = None
    tokenizer_revision: str | None = None
    download_dir: str | None = None
    load_format: str = "auto"
    hf_token: str | bool | None = dataclasses.field(default=None, repr=False)
    hf_overrides: dict[str, Any] | None = None
    limit_mm_per_prompt: dict[str, Any] | None = None
    skip_tokenizer_init: bool = False
    dtype: str | torch.dtype = "auto"
    quantization: str | None = None
    calibration: str | None = None
    seed: int = 0
    max_model_len: int | None = None
    kv_cache_dtype: str = "auto"
    block_size: int = 16
    kv_cache_memory_bytes: int | None = None
    num_gpu_blocks_override: int | None = None
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    enable_prefix_caching: bool = True
    scheduling_policy: str = "fcfs"
    backend: str = "armllm"
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    nnodes: int = 1
    node_rank: int = 0
    master_addr: str = "127.0.0.1"
    master_port: int = 29501
    max_logprobs: int = -1
    generation_config: str = "auto"
    override_generation_config: dict[str, Any] | None = None
    enable_lora: bool = False
    max_loras: int = 1
    max_lora_rank: int = 16
    max_cpu_loras: int | None = None

    @classmethod
    def of(cls, model: str | Path, options: dict[str, Any], usage: str = "offline") -> EngineConfig:
        """The options for a model; None is the default. ``usage`` is a key of `USAGES`.

        TypeError names one that does not exist; RequestError one of vLLM's that is taken here with other
        values only.
        """
        known = [field.name for field in dataclasses.fields(cls)]
        options = dict(options)
        for name in options.keys() - set(known):
            option = foregone_options().get(name)
            if option is None or option.command is not None:
                raise TypeError(f"the engine does not take {name!r}; it takes {', '.join(known)}")
            if (refused := option.refusal(options.pop(name))) is not None:
                raise RequestError(f"{name} {refused}")
        set_ones = {name: value for name, value in options.items() if value is not None}
        if set_ones.get("max_model_len") == "auto":
            set_ones["max_model_len"] = -1
        return cls(model=str(model), **{**_defaults(usage, set_ones), **set_ones})

    def __post_init__(self) -> None:
        self._check_numbers()
        self._check_nodes()
        if not isinstance(self.seed, int) or isinstance(self.seed, bool):
            raise RequestError(f"seed must be an integer, not {self.seed!r}")
        for name in ("skip_tokenizer_init", "enable_prefix_caching", "enable_lora"):
            if not isinstance(getattr(self, name), bool):
                raise RequestError(f"{name} must be True or False, not {getattr(self, name)!r}")
        for name, allowed in ALLOWED.items():
            self._check_choice(name, getattr(self, name), allowed)
        if not isinstance(self.hf_overrides, dict | None):
            raise RequestError(f"hf_overrides must be a dict of values, not {self.hf_overrides!r:.100}")
        self._check_pictures()
        if self.quantization is not None and self.quantization not in METHODS:
            check_scheme("quantization", self.quantization)
        if self.calibration is not None:
            self._check_calibration()
        if self.enable_lora:
            self._check_lora()
        if self.backend == "openvino":
            self._check_openvino()
        self._check_dtype()

    def _check_pictures(self) -> None:
        limits = {} if self.limit_mm_per_prompt is None else self.limit_mm_per_prompt
        count = limits.get("image", MOST_PICTURES) if isinstance(limits, dict) else None
        if not isinstance(count, int) or isinstance(count, bool) or count < 0:
            raise RequestError(
                f'limit_mm_per_prompt must be a dict such as {{"image": 4}}, not {limits!r:.100}'
            )

    def _check_calibration(self) -> None:
        if self.quantization not in SCHEMES:
            raise RequestError(
                "calibration needs a quantization to calibrate: int8, int4, int4-g128 and so on"
            )
        if self.load_format == "dummy":
            raise RequestError("calibration needs weights, and load_format dummy reads none: use one of them")

    def _check_lora(self) -> None:
        if (self.max_cpu_loras or self.max_loras) < self.max_loras:
            raise RequestError(
                f"max_cpu_loras {self.max_cpu_loras} must be at least max_loras {self.max_loras}"
            )
        if self.calibration is not None:
            raise RequestError(
                "enable_lora with calibration is not supported: it scales the inputs that adapters know"
            )

    def _check_openvino(self) -> None:
        """RequestError names an option that only our own back end has."""
        others: dict[str, Any] = dict.fromkeys(PARALLEL, 1)
        others |= {"nnodes": 1, "enable_lora": False, "calibration": None, "hf_overrides": None}
        for name, neutral in others.items():
            if getattr(self, name) != neutral:
                raise RequestError(f"backend openvino does not take {name}: use backend armllm for it")
        if self.load_format == "dummy":
            raise RequestError("backend openvino has no load_format dummy: use backend armllm for it")
        if self.block_size != OPENVINO_BLOCK_SIZE:
            raise RequestError(
                f"block_size {self.block_size}: OpenVINO's attention has blocks of {OPENVINO_BLOCK_SIZE}"
            )
        if self.quantization is not None and self.quantization not in SCHEMES:
            raise RequestError(
                f"quantization {self.quantization!r}: backend openvino takes int8, int4, int4-g32, int4-g64,"
                " int4-g128 and int4-channelwise"
            )

    def kv_cache_space(self) -> tuple[int | None, str]:
        """Bytes that were asked for the KV cache, and what asked: the variable stands above the option."""
        if (space := environment.kv_cache_bytes()) is not None:
            return space, "VLLM_CPU_KVCACHE_SPACE"
        return self.kv_cache_memory_bytes, "kv_cache_memory_bytes"

    def _check_numbers(self) -> None:
        for name in ("block_size", "max_num_seqs", "max_num_batched_tokens", "nnodes", *PARALLEL):
            self._check_positive(name, getattr(self, name))
        for name in ("max_loras", "max_lora_rank"):
            self._check_positive(name, getattr(self, name))
        unlimited: dict[str, tuple[int | None, ...]]
        unlimited = {"num_gpu_blocks_override": (None,), "max_cpu_loras": (None,)}
        unlimited |= {"kv_cache_memory_bytes": (None,)}
        unlimited |= {"max_model_len": (None, -1), "max_logprobs": (-1, 0)}
        for name, values in unlimited.items():
            if getattr(self, name) not in values:
                self._check_positive(name, getattr(self, name))
        for name in PARALLEL:
            if getattr(self, name) > MOST_RANKS:
                raise RequestError(f"{name} must be at most {MOST_RANKS}")
        if min(self.tensor_parallel_size, self.pipeline_parallel_size) > 1:
            raise RequestError(
                f"tensor_parallel_size {self.tensor_parallel_size} and pipeline_parallel_size"
                f" {self.pipeline_parallel_size} do not go together: use one of them"
            )

    def _check_nodes(self) -> None:
        if not isinstance(self.node_rank, int) or not 0 <= self.node_rank < self.nnodes:
            raise RequestError(
                f"node_rank must be from 0 to {self.nnodes - 1}, one below nnodes, not {self.node_rank!r}"
            )
        if not isinstance(self.master_port, int) or not 0 < self.master_port < 1 << 16:
            raise RequestError(f"master_port must be from 1 to 65535, not {self.master_port!r}")
        if self.nnodes > 1 and self.pipeline_parallel_size != self.nnodes:
            raise RequestError(
                f"nnodes {self.nnodes} needs pipeline_parallel_size {self.nnodes}, a stage on each machine,"
                f" not {self.pipeline_parallel_size}"
            )

    def _check_dtype(self) -> None:
        if self.dtype != "auto" and self._dtype_name not in DTYPES:
            raise RequestError(
                f"dtype {str(self.dtype)!r} is not supported, only auto, float32, bfloat16 and float16"
            )

    @staticmethod
    def _check_positive(name: str, value: Any) -> None:
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise RequestError(f"{name} must be a positive integer, not {value!r}")

    @staticmethod
    def _check_choice(name: str, value: Any, allowed: tuple[str, ...]) -> None:
        if value not in allowed:
            raise RequestError(f"{name} must be {' or '.join(map(repr, allowed))}, not {value!r}")

    @property
    def num_processes(self) -> int:
        """How many compute the model together."""
        return max(self.tensor_parallel_size, self.pipeline_parallel_size)

    @property
    def num_local(self) -> int:
        """How many of them are on this machine."""
        return 1 if self.nnodes > 1 else self.num_processes

    @property
    def model_folder(self) -> Path:
        """The checkpoint folder."""
        hub = self._hub(self.revision)
        if self.load_format == "dummy":
            hub = dataclasses.replace(hub, patterns=WITHOUT_WEIGHTS)
        elif self.backend == "openvino":
            hub = dataclasses.replace(hub, patterns=WANTED_BY_OPENVINO)
        return resolve_model(self.model, options=hub)

    @property
    def tokenizer_folder(self) -> Path:
        """The folder with tokenizer.json."""
        if self.tokenizer is None:
            return self.model_folder
        return resolve_model(self.tokenizer, "tokenizer", self._hub(self.tokenizer_revision))

    def _hub(self, revision: str | None) -> HubOptions:
        return HubOptions(revision=revision, cache_dir=self.download_dir, token=self.hf_token)

    @property
    def most_pictures(self) -> int:
        """In a prompt."""
        found: int = (self.limit_mm_per_prompt or {}).get("image", MOST_PICTURES)
        return found

    @property
    def _dtype_name(self) -> str:
        return str(self.dtype).removeprefix("torch.")

    @functools.cached_property
    def torch_dtype(self) -> torch.dtype:
        """The dtype of weights and activations. That of "auto" is logged with its reason."""
        if self.dtype != "auto":
            return DTYPES[self._dtype_name]
        stored = "BF16" if self.load_format == "dummy" else _stored_dtype(self.model_folder)
        dtype, has = torch.bfloat16, "products in bfloat16"
        if stored == "F16" and cpu_computes_float16():
            dtype, has = torch.float16, "products in float16"
        elif not cpu_computes_bfloat16():
            # Half of the bytes are faster to read, though not to multiply, than numbers made wider.
            has = "no products in bfloat16"
            if stored in FLOAT32_WITHOUT_BF16:
                dtype = torch.float32
        logger.info(
            "dtype auto: %s, since most weights are %s and this CPU has %s",
            str(dtype).removeprefix("torch."),
            stored,
            has,
        )
        return dtype

    @property
    def cache_dtype(self) -> torch.dtype:
        """The dtype of the KV cache."""
        return torch.int8 if self.kv_cache_dtype == "int8" else self.torch_dtype


def _defaults(usage: str, options: dict[str, Any]) -> dict[str, int]:
    """VLLM's defaults on a CPU: every rank computes its part of a step, so a step may be larger."""
    ranks = max((size for name in PARALLEL if isinstance(size := options.get(name, 1), int)), default=1)
    several = 1 < ranks <= MOST_RANKS
    defaults = {
        name: value * ranks if several and name != "max_logprobs" else value
        for name, value in USAGES[usage].items()
    }
    tokens = options.get("max_num_batched_tokens")
    if isinstance(tokens, int) and 0 < tokens < defaults["max_num_seqs"]:  # each sequence has a token
        defaults["max_num_seqs"] = tokens
    if options.get("backend") == "openvino":
        defaults["block_size"] = OPENVINO_BLOCK_SIZE
    return defaults


def _stored_dtype(model: Path) -> str:
    """The type of most of a checkpoint's numbers, as safetensors or GGUF writes it."""
    checkpoint = open_checkpoint(model)
    sizes: Counter[str] = Counter()
    for name in checkpoint.names():
        kind, shape = checkpoint.describe(name)
        sizes[kind] += math.prod(shape)
    return max(sizes, key=lambda kind: sizes[kind])
