"""Why fields of OpenAI and vLLM are not supported, where a value would change something."""

from __future__ import annotations

_GROUPS = {
    "audio modalities media_io_kwargs mm_processor_kwargs mm_payload return_mm_kwargs": (
        "models take and give text only"
    ),
    "prompt_embeds": "a prompt is a text or token ids",
    "cache_salt": "all requests share the prefix cache; --no-enable-prefix-caching switches it off",
    "prompt_cache_options": "the prefix cache has no options",
    "truncation_side": "truncate_prompt_tokens keeps the last tokens",
    "truncation": "a prompt that does not fit is an error",
    "padding": "batches have no padding",
    "messages add_generation_prompt continue_final_message chat_template_kwargs": (
        "texts and token ids are pooled, not conversations"
    ),
    "chat_template": "--chat-template of the server sets it for all requests",
    "activation softmax use_activation": (
        "the model's configuration decides; /classify and /pooling can change it"
    ),
    "instruction": "write it into the query",
    "max_tokens_per_query max_tokens_per_doc": "truncate_prompt_tokens limits a whole pair",
    "background conversation previous_response_id previous_input_messages prompt": (
        "nothing is stored; send everything in input"
    ),
    "include top_logprobs": "/v1/chat/completions has log-probabilities; other additions are not made here",
    "enable_response_messages": "the answer has items, and nothing else of the conversation",
    "stream_options": "only streams have options, and a stream of /v1/responses always ends with the usage",
    "functions function_call": "these names are old; use tools and tool_choice",
    "web_search_options": "the server does not search",
    "n": "each conversation of a batch has one answer; repeat a conversation to have more",
    "stream tools tool_choice parallel_tool_calls prompt_logprobs": (
        "a batch is answered at once and with text only; /v1/chat/completions has it"
    ),
    "guided_decoding_backend": "llguidance enforces every form of output",
    "prediction": "there is no speculative decoding",
    "verbosity": "chat_template_kwargs passes variables to the chat template",
    "echo": "/v1/completions has it",
    "suffix": "a model continues texts; it fills no gaps",
    "best_of": "it can only be n, since no answers are dropped",
    "use_beam_search length_penalty early_stopping": "a server samples; LLM.beam_search is in Python",
    "spaces_between_special_tokens": "the tokenizer decides about spaces",
    "logits_processors": "a request brings no code; use logit_bias, bad_words or structured_outputs",
    "return_tokens_as_token_ids": "return_token_ids gives the ids",
    "return_token_offsets return_prompt_text": "return_token_ids gives the ids, and /detokenize their text",
    "no_stop_trim": "include_stop_str_in_output leaves stop strings in the text",
    "return_hidden_states": "only pooled states are given, by /pooling",
    "separate_reasoning stream_reasoning": (
        "--reasoning-parser of the server separates thoughts, and include_reasoning false leaves them out"
    ),
    "session_params": "requests are independent; the prefix cache finds what they share",
    "lora_path": "model names an adapter",
    "is_3d_lora_weight": "adapters are read in the form of PEFT",
    "logprob_token_ids": "log-probabilities are those of the likeliest tokens",
    "thinking_token_budget": "thoughts have no separate limit; max_tokens limits an answer",
    "repetition_detection": "use repetition_penalty",
    "kv_transfer_params ec_transfer_params": "the KV cache stays in this process",
    "vllm_xargs": "the engine has no extensions that would read it",
    "watermarking": "tokens are sampled without a watermark",
    "routed_experts_prompt_start": "it is not recorded which experts compute a token",
    "return_weight_versions": "the weights of a server do not change",
    "stream_interval": "each token is sent when it is there",
}
REASONS = {name: reason for names, reason in _GROUPS.items() for name in names.split()}
