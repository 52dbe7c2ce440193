"""The layers of a family see as far back as those of transformers."""

from __future__ import annotations

import pytest
from tests.armllm.models.small_configs import FULL, SLIDING, read


@pytest.mark.parametrize(
    ("architecture", "values", "windows"),
    [
        ("Ministral3ForCausalLM", {}, (None, None)),
        ("Ministral3ForCausalLM", {"sliding_window": 8}, (8, 8)),
        ("MinistralForCausalLM", {}, (4096, 4096)),
        ("MinistralForCausalLM", {"sliding_window": 8, "layer_types": [FULL, SLIDING]}, (None, 8)),
        ("GraniteSWAForCausalLM", {"num_hidden_layers": 5}, (None, 128, 128, 128, None)),
        ("CwmForCausalLM", {"num_hidden_layers": 5}, (None, 8192, 8192, 8192, None)),
        ("Dots1ForCausalLM", {"max_window_layers": 1}, (None, 4096)),
        ("Dots1ForCausalLM", {"max_window_layers": 1, "sliding_window": None}, (None, None)),
        ("MistralForCausalLM", {}, (4096, 4096)),
        ("MistralForCausalLM", {"sliding_window": None}, (None, None)),
        ("MistralForCausalLM", {"sliding_window": 8, "layer_types": [SLIDING, FULL]}, (8, None)),
        ("MixtralForCausalLM", {}, (None, None)),
        ("Phi3ForCausalLM", {"sliding_window": 2047}, (2047, 2047)),
        ("PhimoeForCausalLM", {"sliding_window": 2047}, (2047, 2047)),
        ("Qwen2ForCausalLM", {"sliding_window": 64}, (None, None)),
        ("Qwen2ForCausalLM", {"use_sliding_window": True, "max_window_layers": 1}, (None, 4096)),
        ("Qwen2ForCausalLM", {"use_sliding_window": True, "sliding_window": None}, (None, None)),
        ("Qwen3ForCausalLM", {"use_sliding_window": True, "layer_types": [SLIDING, FULL]}, (4096, None)),
        ("Qwen2MoeForCausalLM", {"use_sliding_window": True, "sliding_window": 7}, (7, None)),
        ("Qwen3MoeForCausalLM", {"use_sliding_window": True, "sliding_window": 7}, (7, 7)),
        ("SmolLM3ForCausalLM", {"sliding_window": 7}, (None, None)),
        (
            "SmolLM3ForCausalLM",
            {"use_sliding_window": True, "sliding_window": 7, "no_rope_layers": [1, 0]},
            (None, 7),
        ),
        ("GemmaForCausalLM", {}, (None, None)),
        ("Olmo2ForCausalLM", {"layer_types": [FULL] * 2}, (None, None)),
        ("Olmo3ForCausalLM", {"num_hidden_layers": 5, "sliding_window": 7}, (7, 7, 7, None, 7)),
        ("Starcoder2ForCausalLM", {"sliding_window": 7}, (7, 7)),
        ("Cohere2ForCausalLM", {"num_hidden_layers": 5}, (4096, 4096, 4096, None, 4096)),
        ("Cohere2ForCausalLM", {"sliding_window_pattern": 2, "sliding_window": 7}, (7, None)),
        ("Cohere2ForCausalLM", {"_sliding_window_pattern": 4, "layer_types": [SLIDING, FULL]}, (4096, None)),
        ("Cohere2MoeForCausalLM", {"num_hidden_layers": 5}, (4096, 4096, 4096, None, 4096)),
        ("Cohere2MoeForCausalLM", {"first_k_dense_replace": 1}, (None, 4096)),
        (
            "Cohere2MoeForCausalLM",
            {"first_k_dense_replace": 3, "prefix_dense_sliding_window_pattern": 2, "num_hidden_layers": 5},
            (4096, None, 4096, 4096, 4096),
        ),
        ("ExaoneMoeForCausalLM", {"num_hidden_layers": 5}, (4096, 4096, 4096, None, 4096)),
        ("GraniteMoeSWAForCausalLM", {"num_hidden_layers": 5}, (None, 128, 128, 128, None)),
        ("Exaone4ForCausalLM", {"num_hidden_layers": 5}, (4096, 4096, 4096, None, 4096)),
        ("Exaone4ForCausalLM", {"sliding_window": None, "sliding_window_pattern": None}, (None, None)),
        (
            "Exaone4ForCausalLM",
            {"sliding_window_pattern": "LLLG", "layer_types": [SLIDING, FULL]},
            (4096, None),
        ),
        ("Gemma2ForCausalLM", {"sliding_window": 7}, (7, None)),
        ("AfmoeForCausalLM", {"num_hidden_layers": 5}, (1024, 1024, 1024, None, 1024)),
        ("VaultGemmaForCausalLM", {"num_hidden_layers": 3}, (4096, None, 4096)),
        ("GptOssForCausalLM", {}, (128, None)),
        ("GptOssForCausalLM", {"sliding_window": 7, "layer_types": [FULL, SLIDING]}, (None, 7)),
        ("Gemma3ForCausalLM", {"sliding_window": 7, "sliding_window_pattern": 2}, (7, None)),
        ("Gemma4ForCausalLM", {"num_hidden_layers": 7}, (512,) * 5 + (None, None)),
        ("Gemma3nForCausalLM", {"num_hidden_layers": 6}, (512,) * 4 + (None, 512)),
        ("Gemma3ForCausalLM", {"num_hidden_layers": 7}, (4096,) * 5 + (None, 4096)),
        ("Gemma3ForCausalLM", {"_sliding_window_pattern": 3, "layer_types": [SLIDING, FULL]}, (4096, None)),
    ],
)
def test_every_family_puts_its_window_where_transformers_does(tmp_path, architecture, values, windows):
    assert read(tmp_path, architecture, **values).windows == windows
