"""The choice of what computes a model, our layers or OpenVINO, and how each loads it."""

from __future__ import annotations

import functools
import importlib.util
import logging
from typing import TYPE_CHECKING

from armllm.convert.calibration import source_of
from armllm.engine.followers import Followers, follower_config
from armllm.engine.model_runner import ModelRunner, Part
from armllm.engine.pipeline import Pipeline
from armllm.errors import RequestError
from armllm.models import read_model_config

if TYPE_CHECKING:
    from collections.abc import Callable

    from armllm.checkpoint.config import ModelConfig
    from armllm.engine.config import EngineConfig
    from armllm.engine.placement import Placement
    from armllm.engine.runner import Runner
    from armllm.models import Model

logger = logging.getLogger(__name__)


def back_end(
    config: EngineConfig,
) -> tuple[Callable[[Placement, Followers | None], Runner], ModelConfig]:
    """What loads the model once there are a placement and followers, and what config.json says."""
    if config.backend == "openvino":
        if importlib.util.find_spec("openvino") is None:
            raise RequestError("backend openvino: OpenVINO is not installed: pip install 'armllm[openvino]'")
        from armllm.openvino.runner import OpenVINORunner, read_config  # noqa: PLC0415 - an extra

        model_config = read_config(config.model_folder)
        return lambda placement, _: OpenVINORunner(config, model_config, placement), model_config
    architecture, model_config = read_model_config(config.model_folder, config.hf_overrides)
    return functools.partial(_load, config, architecture, model_config), model_config


def _load(
    config: EngineConfig,
    architecture: type[Model],
    model_config: ModelConfig,
    placement: Placement,
    followers: Followers | None,
) -> ModelRunner:
    source = source_of(config, model_config.quantization)
    runner = functools.partial(ModelRunner, config, architecture, model_config, source)
    if followers is None:
        return runner(Part(placement.node))
    group = followers.group
    if isinstance(group, Pipeline):
        part, what = Part(placement.node, end=group), "stages compute the model"
    else:
        part, what = Part(placement.node, ranks=group), "ranks compute the model"
    try:
        loaded = runner(
            part,
            checked=lambda runner: followers.load(follower_config(config, runner), runner.num_states),
        )
        followers.wait()
    except BaseException:
        followers.check()
        raise
    logger.info("%d %s", group.size, what)
    return loaded
