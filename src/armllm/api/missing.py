"""Methods of vLLM's engines that this one does not have, and why; arguments that can only be neutral."""

from __future__ import annotations

from typing import Any, NoReturn

from armllm.errors import RequestError

_GROUPS = {
    "sleep wake_up is_sleeping release_kv_cache_memory": "the weights stay mapped: there is no GPU to free",
    "start_profile stop_profile": "there are no profiles; see LLM.stats()",
    "collective_rpc apply_model get_world_size": "there are no workers to call",
    "enqueue enqueue_chat wait_for_completion": "use generate, or LLMEngine.add_request and step",
    "pause_generation resume_generation is_paused": "stop sending requests instead, or abort them",
    "init_weight_transfer_engine start_weight_update update_weights finish_weight_update"
    " start_draft_weight_update shutdown_weight_transfer_engine get_weight_version set_weight_version"
    " update_weight_version compute_weight_checksums": (
        "the weights of an engine do not change: load the new ones as another engine"
    ),
    "checkpoint_prepare checkpoint_restore": "an engine is not stored: load the model again",
    "scale_elastic_ep get_external_elastic_ep_status handle_fault get_status has_unfinished_requests_dp": (
        "an engine is one replica; armllm serve --data-parallel-size starts several"
    ),
    "get_kv_event_sources notify_kv_transfer_request_rejected": "the KV cache stays in this process",
    "check_admission": "requests wait until there is room",
    "reward": "encode and classify give a reward model's value of each text; tokens have none of their own",
    "pin_lora": "max_cpu_loras says how many adapters stay in memory",
    "model_config vllm_config renderer": "see config, get_tokenizer and stats",
    "reset_mm_cache reset_encoder_cache": "models take text only",
}
REASONS = {name: reason for names, reason in _GROUPS.items() for name in names.split()}


class WithReasons:
    """A class whose missing methods say why they are missing."""

    def __getattr__(self, name: str) -> NoReturn:
        reason = f": {REASONS[name]}" if name in REASONS else ""
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{reason}")


# of `LLMEngine.add_request`, `AsyncLLM.generate` and `AsyncLLM.encode` in vLLM
OF_REQUESTS: dict[str, tuple[Any, ...]] = {
    "tokenization_kwargs": (None, {}),
    "trace_headers": (None, {}),
    "data_parallel_rank": (None, 0),
    "session_id": (None,),
    "prompt_text": (None,),
    "kv_hints": (None,),
    "reasoning_ended": (None,),
    "reasoning_parser_kwargs": (None, {}),
}
# of `from_engine_args` and `from_vllm_config`; what is an Ellipsis may have any value
OF_LOADING: dict[str, tuple[Any, ...]] = {
    "usage_context": (...,),
    "start_engine_loop": (True,),
    "enable_multiprocessing": (...,),
    "stat_loggers": (None, []),
    "disable_log_stats": (...,),
    "enable_log_requests": (False,),
    "aggregate_engine_logging": (False,),
    "client_addresses": (None,),
    "client_count": (1,),
    "client_index": (0,),
}


def only_these(options: dict[str, Any], accepted: dict[str, tuple[Any, ...]]) -> None:
    """Refuse an argument of vLLM's that asks for something; TypeError for a name that vLLM does not have."""
    for name, value in options.items():
        if name not in accepted:
            raise TypeError(f"unexpected keyword argument {name!r}")
        if value not in accepted[name] and ... not in accepted[name]:
            values = " or ".join(map(repr, accepted[name]))
            raise RequestError(f"{name} can only be {values} here, not {value!r:.80}")
