"""Checkpoints of random weights, a small tokenizer, and the same model in transformers as the judge."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import random
import shutil
from typing import TYPE_CHECKING, Any

import pytest
import tokenizers
import torch
import transformers
from safetensors.torch import save_file

from armllm import kernels
from armllm.kernels import reference
from armllm.layers import cpu

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

# Equal numbers give equal products wherever they lie: MKL on AMD sums in another order where a matrix in a
# mapped file is not aligned as one in memory is. Read when it computes its first product.
os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")

VOCAB_SIZE = 400
CORPUS = [
    "The quick brown fox jumps over the lazy dog, and the dog sleeps on.",
    "Grüße aus Köln: Straße, Öl, ärgerlich, naïve café, élève.",
    "東京は日本の首都です。寿司とラーメン。",
    "Emoji 😀🎉👩‍👩‍👧‍👦 and symbols → ∑ ∞ € £.",
    "def step(self) -> list[int]:\n    return [token for token in self.tokens]\n",
]


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture
def weights_as_stored(monkeypatch):
    """Products take weights in the order of a checkpoint, also where panels are faster."""
    monkeypatch.setattr(cpu, "has_fast_panels", lambda _dtype: False)


@pytest.fixture
def reference_kernels(monkeypatch, weights_as_stored):
    """The plain torch kernels instead of the extension."""
    for name in kernels.__all__:
        monkeypatch.setattr(kernels, name, getattr(reference, name))


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory) -> Path:
    """A byte-level BPE tokenizer that puts <s> before a prompt, as Llama 3's does."""
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS * 4, trainer)
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "bos_token": "<s>",
        "eos_token": {"__type": "AddedToken", "content": "</s>"},
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


@dataclasses.dataclass
class Checkpoint:
    """A checkpoint folder and the same model in transformers."""

    folder: Path
    model: Any

    def prompts(
        self, lengths: Iterable[int], num_tokens: int, seed: int = 0
    ) -> dict[tuple[int, ...], list[int]]:
        """Random prompts with what transformers generates from them; none where two tokens nearly tie."""
        rng = random.Random(seed)  # noqa: S311 - test data
        found: dict[tuple[int, ...], list[int]] = {}
        for length in lengths:
            expected = None
            while expected is None:
                prompt = tuple(rng.randrange(2, VOCAB_SIZE) for _ in range(length))
                expected = self.greedy(prompt, num_tokens)
            found[prompt] = expected
        return found

    def greedy(self, prompt: Sequence[int], num_tokens: int) -> list[int] | None:
        """What transformers generates, never ending early; None where the best two tokens nearly tie."""
        ids = torch.tensor([list(prompt)])
        with torch.inference_mode():
            result = self.model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=num_tokens,
                do_sample=False,
                eos_token_id=None,
                pad_token_id=0,
                output_logits=True,
                return_dict_in_generate=True,
            )
        best = torch.cat(result.logits).topk(2).values
        if (best[:, 0] - best[:, 1]).min() < 1e-3:
            return None
        return result.sequences[0, len(prompt) :].tolist()

    def logits(self, prompt: list[int]) -> torch.Tensor:
        """fp32 logits after the prompt."""
        with torch.inference_mode():
            return self.model(torch.tensor([list(prompt)])).logits[0, -1]


BASE = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
    "bos_token_id": 0,
    "eos_token_id": 1,
}


def random_model(config: dict[str, Any], seed: int = 0):
    """A transformers model whose logits are far apart, biases and norms included."""
    torch.manual_seed(seed)
    settings = transformers.AutoConfig.for_model(**config)
    model = transformers.AutoModelForCausalLM.from_config(settings, dtype=torch.float32).eval()
    for name, parameter in model.named_parameters():
        with torch.no_grad():
            if "norm" in name:
                parameter.uniform_(0.5, 1.5)
            elif name.endswith("bias") or "embed_tokens" in name:
                parameter.normal_(std=0.5)
            else:
                parameter.normal_(std=2.0 * parameter.shape[min(1, parameter.ndim - 1)] ** -0.5)
    return model


def write_checkpoint(
    folder: Path, config: dict[str, Any], state: dict[str, torch.Tensor], shards: int = 1
) -> None:
    """config.json by hand, and the weights in one file or several with an index."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    if shards == 1:
        save_file(state, folder / "model.safetensors")
        return
    names = sorted(state)
    weight_map = {}
    for shard in range(shards):
        file_name = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        part = {name: state[name] for name in names[shard::shards]}
        save_file(part, folder / file_name)
        weight_map |= dict.fromkeys(part, file_name)
    index = {"metadata": {"total_size": 0}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def state_of(model, config: dict[str, Any]) -> dict[str, torch.Tensor]:
    """The tensors that a checkpoint holds: without the head when it is tied."""
    state = {name: tensor.clone().contiguous() for name, tensor in model.state_dict().items()}
    if config["tie_word_embeddings"]:
        state.pop("lm_head.weight", None)
    return state


@pytest.fixture(scope="session")
def make_checkpoint(tmp_path_factory, tokenizer_folder):
    """make_checkpoint(seed=0, shards=1, drop=(), **changes to BASE): a folder with its transformers twin."""
    checkpoints: dict[str, Checkpoint] = {}
    numbers = itertools.count()

    def make(*, seed: int = 0, shards: int = 1, drop: tuple[str, ...] = (), **changes: Any) -> Checkpoint:
        key = json.dumps([seed, shards, drop, changes], sort_keys=True)
        if key not in checkpoints:
            config = {name: value for name, value in (BASE | changes).items() if name not in drop}
            model = random_model(config, seed)
            folder = tmp_path_factory.mktemp("checkpoints") / str(next(numbers))
            write_checkpoint(folder, config, state_of(model, config), shards)
            for name in ("tokenizer.json", "tokenizer_config.json"):
                shutil.copy(tokenizer_folder / name, folder)
            checkpoints[key] = Checkpoint(folder, model)
        return checkpoints[key]

    return make


@pytest.fixture
def large_checkpoint(tmp_path):
    """A Llama of 67 million weights in bf16, for what is to be seen in a process's memory."""
    folder = tmp_path / "large"
    folder.mkdir()
    config = {
        "architectures": ["LlamaForCausalLM"], "vocab_size": 64, "hidden_size": 1024,
        "intermediate_size": 4096, "num_hidden_layers": 4, "num_attention_heads": 8,
        "num_key_value_heads": 8, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
    }  # fmt: skip
    state = {
        "model.embed_tokens.weight": (64, 1024),
        "lm_head.weight": (64, 1024),
        "model.norm.weight": (1024,),
    }
    for index in range(4):
        stem = f"model.layers.{index}."
        state |= {f"{stem}self_attn.{name}_proj.weight": (1024, 1024) for name in "qkvo"}
        state |= {f"{stem}mlp.{name}_proj.weight": (4096, 1024) for name in ("gate", "up")}
        state |= {f"{stem}mlp.down_proj.weight": (1024, 4096)}
        state |= {f"{stem}{name}_layernorm.weight": (1024,) for name in ("input", "post_attention")}
    save_file(
        {name: torch.full(shape, 0.01, dtype=torch.bfloat16) for name, shape in state.items()},
        folder / "model.safetensors",
    )
    (folder / "config.json").write_text(json.dumps(config))
    return folder
