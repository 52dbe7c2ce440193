"""What an adapter must not be, refused by name before its data are read."""

from __future__ import annotations

import json
import os

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.armllm.adapters import write_adapter

from armllm.checkpoint.adapter import MatrixShape, plain_name, read_adapter
from armllm.errors import CheckpointError

ROWS, COLUMNS = 6, 8
NAMES = [f"model.layers.{index}.{name}" for index in range(2) for name in ("self_attn.q_proj", "mlp.up_proj")]
SHAPES = {plain_name(name): MatrixShape(ROWS, COLUMNS) for name in NAMES}


class Modules(torch.nn.Module):
    """Only names and shapes of linear layers."""

    def named_modules(self, *_args, **_options):
        return [(name, torch.nn.Linear(COLUMNS, ROWS, bias=False)) for name in NAMES]


def written(folder, **config):
    return write_adapter(folder, Modules(), ("q_proj", "up_proj"), **config)


def change(folder, edit):
    """Edit the tensors of an adapter."""
    path = folder / "adapter_model.safetensors"
    tensors = load_file(path)
    edit(tensors)
    save_file(tensors, path)


def read(folder, max_rank=16, shapes=SHAPES, **options):
    return read_adapter("test", folder, shapes, max_rank=max_rank, **options)


REFUSED = {
    "bias": ({"bias": "lora_only"}, "bias 'lora_only' is not supported"),
    "saved modules": ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
    "parameters": ({"target_parameters": ["mlp.experts.gate_up_proj"]}, "MoE experts"),
    "a parameter of no module": ({"target_parameters": [".weight", "A_log"]}, "'A_log' is not supported"),
    "parameters of no kind": ({"target_parameters": "gate.weight"}, "target_parameters must be a text or"),
    "another method": ({"peft_type": "IA3"}, "peft_type 'IA3' is not supported"),
    "PiSSA": ({"init_lora_weights": "pissa_niter_4"}, "changes the base's weights"),
    "biases of B": ({"lora_bias": True}, "lora_bias True is not supported"),
    "a future key": ({"use_something_new": 1}, "use_something_new 1 is not supported"),
    "rank as text": ({"rank_pattern": {"q_proj": "2"}}, "rank_pattern.q_proj must be a whole number"),
    "alpha as text": ({"lora_alpha": "8"}, "lora_alpha must be a number"),
    "alpha not a number": ({"lora_alpha": float("nan")}, "lora_alpha must be a number"),
    "a switch as text": ({"use_dora": "no"}, "use_dora must be true or false"),
    "a broken expression": ({"target_modules": "(q_proj"}, "is no regular expression"),
    "targets of no kind": ({"target_modules": 5}, "target_modules must be a text or a list"),
    "a matrix not named": ({"target_modules": ["q_proj"]}, r"up_proj, which target_modules .* does not name"),
    "an excluded one": ({"exclude_modules": ["mlp.up_proj"]}, "which target_modules"),
    "another layer": ({"layers_to_transform": [1]}, r"layers\.0.*which target_modules"),
    "another rank": (
        {"rank_pattern": {"q_proj": 3}},
        r"q_proj.lora_A.weight has shape \[4, 8\], not \[3, 8\]",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_config_must_not_say(tmp_path, name):
    values, message = REFUSED[name]
    folder = written(tmp_path)
    path = folder / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))
    with pytest.raises(CheckpointError, match=message):
        read(folder)


def rename(old, new):
    def edit(tensors):
        for name in list(tensors):
            tensors[name.replace(old, new)] = tensors.pop(name)

    return edit


def put(name, tensor):
    def edit(tensors):
        tensors[name] = tensor

    return edit


FIRST = "base_model.model.model.layers.0.self_attn.q_proj"
TENSORS = {
    "head": (
        put("base_model.model.lm_head.lora_A.weight", torch.ones(4, 8)),
        r"changes the head \(lm_head\)",
    ),
    "embedding": (
        put("base_model.model.model.embed_tokens.lora_embedding_A", torch.ones(4, 8)),
        "changes the embedding",
    ),
    "expert": (rename("mlp.up_proj", "mlp.experts.0.up_proj"), "changes experts of a mixture"),
    "unknown": (rename("up_proj", "other_proj"), "is of a module that this model does not have"),
    "tower": (rename("model.layers", "vision_tower.layers"), "is of a module that this model does not have"),
    "layer 7": (rename("layers.1", "layers.7"), r"layers\.7.* is of a module that this model does not have"),
    "bias": (put(f"{FIRST}.lora_B.bias", torch.ones(6)), "is not supported, only lora_A"),
    "magnitude": (put(f"{FIRST}.lora_magnitude_vector", torch.ones(6)), "use_dora in .* is false"),
    "columns": (put(f"{FIRST}.lora_A.weight", torch.ones(4, 9)), r"has shape \[4, 9\], not \[4, 8\]"),
    "rows": (put(f"{FIRST}.lora_B.weight", torch.ones(5, 4)), r"has shape \[5, 4\], not \[6, 4\]"),
    "integers": (put(f"{FIRST}.lora_A.weight", torch.ones(4, 8, dtype=torch.int32)), "has dtype I32"),
    "no number": (put(f"{FIRST}.lora_B.weight", torch.full((6, 4), float("nan"))), "are NaN or infinite"),
    "infinity": (put(f"{FIRST}.lora_A.weight", torch.full((4, 8), float("-inf"))), "are NaN or infinite"),
    "a factor": (put(f"{FIRST}.lora_B.weight", torch.full((6, 4), 3e38)), "q_proj may be too large for"),
    "a product": (
        lambda tensors: [
            put(f"{FIRST}.lora_{one}.weight", torch.full(shape, 1e19))(tensors)
            for one, shape in (("A", (4, 8)), ("B", (6, 4)))
        ],
        "q_proj may be too large for torch.float32",
    ),
    "half a pair": (lambda tensors: tensors.pop(f"{FIRST}.lora_B.weight"), "q_proj has no lora_B"),
    "a target without a change": (
        lambda tensors: [tensors.pop(f"{FIRST}.lora_{letter}.weight") for letter in "AB"],
        "target_modules names model.layers.0.self_attn.q_proj, and .* has no change of it",
    ),
    "nothing": (lambda tensors: tensors.clear(), "holds no tensors"),
}


@pytest.mark.parametrize("name", TENSORS)
def test_what_the_tensors_must_not_be(tmp_path, name):
    edit, message = TENSORS[name]
    folder = written(tmp_path)
    change(folder, edit)
    with pytest.raises(CheckpointError, match=message) as caught:
        read(folder)
    assert "\n" not in str(caught.value)


def test_what_one_dtype_can_hold_is_too_large_for_another(tmp_path):
    """Its requests would fail with logits that are infinite; magnitudes of DoRA count as well."""
    for folder, tensor in (
        (written(tmp_path / "plain"), "lora_B.weight"),
        (written(tmp_path / "dora", use_dora=True), "lora_magnitude_vector"),
    ):
        change(folder, lambda tensors, name=f"{FIRST}.{tensor}": tensors[name].fill_(1e5))
        for dtype in (torch.float32, torch.bfloat16):
            assert read(folder, dtype=dtype).rank == 4
        with pytest.raises(CheckpointError, match=r"q_proj may be too large for torch\.float16"):
            read(folder, dtype=torch.float16)


@pytest.mark.parametrize("name", ["adapter_config.json", "adapter_model.safetensors"])
def test_a_pipe_in_place_of_a_file(tmp_path, name):
    folder = written(tmp_path)
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with pytest.raises(CheckpointError, match="is no regular file"):
        read(folder)


def test_files_that_are_missing(tmp_path):
    with pytest.raises(CheckpointError, match=r"has no adapter_config\.json"):
        read(tmp_path)
    folder = written(tmp_path / "a")
    (folder / "adapter_model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"there is no adapter_model\.safetensors"):
        read(folder)
    (folder / "adapter_model.bin").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"is a pickle.*safe_serialization"):
        read(folder)
    (folder / "adapter_model.safetensors").write_bytes(b"12345678")
    with pytest.raises(CheckpointError, match="can't be read as safetensors"):
        read(folder)


def test_a_rank_above_the_limit(tmp_path):
    folder = written(tmp_path, r=8)
    assert read(folder, max_rank=8).rank == 8
    with pytest.raises(CheckpointError, match=r"rank 8 of .* is above max_lora_rank 7"):
        read(folder, max_rank=7)


@pytest.mark.parametrize(
    ("config", "scaling"),
    [
        ({}, 2.0),
        ({"lora_alpha": 3}, 0.75),
        ({"use_rslora": True}, 4.0),
        ({"alpha_pattern": {"q_proj": 2}}, 0.5),
        ({"alpha_pattern": {r"model\.layers\.\d+\.self_attn\.q_proj": 2, "q_proj": 4}}, 0.5),
        ({"alpha_pattern": {"proj": 2}}, 2.0),  # a whole part of the name, or none of it
    ],
)
def test_scaling(tmp_path, config, scaling):
    adapter = read(written(tmp_path, **config))
    assert adapter.matrices["layers.0.self_attn.q_proj"].scaling == scaling
