"""What OPT has of its own: embeddings of another size than the states of its layers."""

from __future__ import annotations

import torch
from tests.armllm.models.random_configs import random_config
from tests.armllm.models.reference import save_reference

from armllm import LLM, PoolingParams


def test_opt_projects_its_final_states(tmp_path):
    """Catches embeddings that are not those of transformers where ``word_embed_proj_dim`` is another size."""
    model = save_reference(tmp_path, random_config("OPTForCausalLM", 3) | {"word_embed_proj_dim": 24}, 3)
    prompt = [5, 6, 7]
    with torch.inference_mode():
        expected = model.model(torch.tensor([prompt])).last_hidden_state[0, -1]
    llm = LLM(tmp_path, dtype="float32", skip_tokenizer_init=True)
    (output,) = llm.embed([prompt], PoolingParams(normalize=False), use_tqdm=False)
    torch.testing.assert_close(torch.tensor(output.outputs.embedding), expected, rtol=0, atol=1e-4)
