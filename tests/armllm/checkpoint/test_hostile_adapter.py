"""Adapters made to harm are refused in a sentence, or read, in little time."""

from __future__ import annotations

import json
import time

import pytest
import torch
from tests.armllm.adapters import write_adapter
from tests.armllm.checkpoint.test_adapter import Modules, change, read, rename, written

from armllm.checkpoint.adapter import MatrixShape, plain_name
from armllm.checkpoint.adapter_config import LONGEST_PATTERN, MOST_PATTERNS
from armllm.errors import CheckpointError

SECONDS = 3  # of CPU time in this process; a pattern has one in its own
EXPLODES = r"(([a-z._0-9])+)+!"
SLOW_TO_COMPILE = r"(?i)" + r"[\0-\uffff]" * 80
REFUSED = {
    "sets of all letters": ({"target_modules": SLOW_TO_COMPILE}, "which target_modules|takes too long"),
    "long": ({"target_modules": "a" * (LONGEST_PATTERN + 1)}, "more than 1000 characters"),
    "deep": ({"target_modules": "(" * 499 + ")" * 499}, "is no regular expression"),
    "many": ({"rank_pattern": {f"x{index}": 4 for index in range(MOST_PATTERNS + 1)}}, "1025 patterns"),
    "many names": ({"target_modules": [f"x{index}" for index in range(200_000)]}, "200000 names"),
    "a huge repeat": ({"exclude_modules": "(x{9999999999})"}, "is no regular expression"),
    "flags within": ({"rank_pattern": {"(?i)x": 4}}, "is no regular expression"),
    "a stack": ({"layers_to_transform": [0], "layers_pattern": [EXPLODES]}, "no name of a list of layers"),
    "a broken stack": ({"layers_to_transform": [0], "layers_pattern": "("}, "no name of a list of layers"),
    "a group in a stack": ({"layers_to_transform": [0], "layers_pattern": "(x)|y"}, "no name of a list"),
    "a nested rank": ({"rank_pattern": {"q_proj": {"r": 4}}}, "rank_pattern.q_proj must be a whole number"),
    "a list of ranks": ({"rank_pattern": [4]}, "rank_pattern must be an object"),
    "rank 0": ({"r": 0}, "r must be at least 1, not 0"),
    "rank -1": ({"r": -1}, "r must be at least 1, not -1"),
    "a rank of a billion": ({"r": 10**9}, "r must be a whole number below 1e9, not 1000000000"),
    "a rank in parts": ({"r": 4.0}, "r must be a whole number below 1e9, not 4.0"),
    "a rank of many digits": ({"r": 10**400}, "r must be a whole number below 1e9, not 1000"),
    "an infinite alpha": ({"lora_alpha": float("inf")}, "lora_alpha must be a number below 1e9, not inf"),
    "an alpha of 1e39": ({"lora_alpha": 1e39}, "lora_alpha must be a number below 1e9, not 1e[+]39"),
    "an alpha of nothing": (
        {"alpha_pattern": {"q_proj": float("nan")}},
        "number below 1e9, not nan",
    ),
    "saved modules": ({"modules_to_save": {"a": "b" * 10**6}}, "modules_to_save {'a': 'bbb"),
    "a method": ({"peft_type": ["LORA"]}, "peft_type .* is not supported"),
}


@pytest.mark.slow  # a second of CPU time each, at a low priority
@pytest.mark.parametrize("key", ["target_modules", "exclude_modules", "rank_pattern", "alpha_pattern"])
def test_a_pattern_that_takes_for_ever(tmp_path, key):
    folder = written(tmp_path, **{key: {EXPLODES: 4} if key.endswith("pattern") else EXPLODES})
    with pytest.raises(CheckpointError, match="takes too long to match"):
        read(folder)


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_config_does_to_harm(tmp_path, name):
    values, message = REFUSED[name]
    folder = written(tmp_path)
    path = folder / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))
    began = time.process_time()
    with pytest.raises(CheckpointError, match=message) as caught:
        read(folder)
    assert time.process_time() - began < SECONDS
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1500


def test_many_patterns_for_many_matrices_are_compiled_once(tmp_path):
    """It would catch a pattern that is compiled again for each matrix: ten seconds."""
    names = [f"model.layers.{index}.mlp.up_proj" for index in range(50)]

    class Many(Modules):
        def named_modules(self, *_args, **_options):
            return [(name, torch.nn.Linear(2, 2, bias=False)) for name in names]

    patterns = {f"x{index}y": 4 for index in range(MOST_PATTERNS)}
    folder = write_adapter(tmp_path, Many(), ("up_proj",), rank_pattern=patterns, alpha_pattern=patterns)
    shapes = {plain_name(name): MatrixShape(2, 2) for name in names}
    began = time.process_time()
    assert len(read(folder, shapes=shapes).matrices) == len(names)
    assert time.process_time() - began < 3 * SECONDS


@pytest.mark.parametrize("outer", ["model.", "decoder.language_model."])
def test_a_name_of_a_megabyte(tmp_path, outer):
    folder = written(tmp_path)
    change(folder, rename("base_model.model.model.", "base_model.model." + outer * (10**6 // len(outer))))
    began = time.process_time()
    with pytest.raises(CheckpointError, match="has a name of 10000"):
        read(folder)
    assert time.process_time() - began < SECONDS


def test_one_adapter_s_slow_pattern_leaves_the_time_of_others(tmp_path, monkeypatch):
    """Each file has its own budget."""
    monkeypatch.setattr("armllm.checkpoint.patterns.SECONDS", 0.0)
    folder = written(tmp_path, target_modules=r"([a-z]+\d?)+.*proj|.*_proj")
    with pytest.raises(CheckpointError, match="takes too long"):
        read(folder)
    monkeypatch.undo()
    assert len(read(folder).matrices) == 4
