"""Log-probabilities of a prompt, and what of ours vLLM called for them."""

import json
import sys

import torch
from vllm import LLM, SamplingParams
from vllm.model_executor.custom_op import op_registry_oot

called = set()


def note(frame, event, function):
    if event == "c_call" and str(getattr(function, "__module__", "")).startswith("armllm."):
        called.add(function.__name__)


def main():
    folder, tokens, compiled = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3] == "compiled"
    options = {"enforce_eager": not compiled, "skip_tokenizer_init": True, **json.loads(sys.argv[5])}
    llm = LLM(folder, dtype=sys.argv[4], max_model_len=64, **options)
    sampling = SamplingParams(temperature=0, max_tokens=4, prompt_logprobs=0, detokenize=False)
    sys.setprofile(note)  # after the model is built: those that pack weights are not among them
    with torch.profiler.profile() as seen:
        [answer] = llm.generate([{"prompt_token_ids": tokens}], sampling, use_tqdm=False)
    sys.setprofile(None)
    called.update(event.key for event in seen.key_averages() if event.key.startswith("armllm::"))
    print("CALLED", *called)
    print("TOKENS", *answer.outputs[0].token_ids)
    print("REGISTERED", *(one.__module__ for one in op_registry_oot.values()))
    found = zip(tokens[1:], answer.prompt_logprobs[1:], strict=True)
    print("RESULT", json.dumps([entry[token].logprob for token, entry in found]))


if __name__ == "__main__":
    main()
