"""Methods of vLLM's engines that this one does not have, and why."""

from __future__ import annotations

from typing import NoReturn

_GROUPS = {
    "sleep wake_up is_sleeping release_kv_cache_memory": "the weights stay mapped: there is no GPU to free",
    "start_profile stop_profile": "there are no profiles; see LLM.stats()",
    "collective_rpc apply_model get_world_size": "there are no workers to call",
    "enqueue enqueue_chat wait_for_completion": "use generate, or LLMEngine.add_request and step",
    "pause_generation resume_generation is_paused": "stop sending requests instead, or abort them",
    "init_weight_transfer_engine start_weight_update update_weights finish_weight_update": (
        "the weights of an engine do not change: load the new ones as another engine"
    ),
    "reset_mm_cache reset_encoder_cache": "models take text only",
}
REASONS = {name: reason for names, reason in _GROUPS.items() for name in names.split()}


class WithReasons:
    """A class whose missing methods say why they are missing."""

    def __getattr__(self, name: str) -> NoReturn:
        reason = f": {REASONS[name]}" if name in REASONS else ""
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{reason}")
