"""Whatever stands under a key of config.json, the answer is a model or one line that names the file."""

from __future__ import annotations

import copy
import json
import random

import pytest
from tests.armllm.models.random_configs import FAMILIES, random_config

from armllm.errors import CheckpointError
from armllm.models import read_model_config

ODD = [
    None,
    True,
    False,
    0,
    -1,
    1,
    3,
    0.5,
    -2.5,
    10**30,
    10**400,
    1e400,
    "",
    "x",
    [],
    [1],
    [None],
    {},
    {"a": 1},
    [[]],
]


def places(config, path=()):
    """Every key, those of nested objects and list items too."""
    items = config.items() if isinstance(config, dict) else enumerate(config)
    for key, value in items:
        yield (*path, key)
        if isinstance(value, (dict, list)):
            yield from places(value, (*path, key))


def refusal(folder):
    """Why a config.json is not taken, None if it is; anything but CheckpointError is told as it is."""
    try:
        read_model_config(folder)
    except CheckpointError as error:
        return str(error)
    except Exception as error:  # noqa: BLE001 - what the test is looking for
        return repr(error)
    return None


@pytest.mark.parametrize("architecture", FAMILIES)
def test_odd_values_never_end_in_a_traceback(tmp_path, architecture):
    rng = random.Random(architecture)  # noqa: S311 - test data
    for seed in range(2):
        config = random_config(architecture, seed)
        for path in places(config):
            for value in rng.sample(ODD, 5):
                changed = copy.deepcopy(config)
                target = changed
                for key in path[:-1]:
                    target = target[key]
                target[path[-1]] = value
                (tmp_path / "config.json").write_text(json.dumps(changed))
                message = refusal(tmp_path)
                assert message is None or "config.json: " in message, (path, value, message)
                assert message is None or "\n" not in message, (path, value, message)
