"""VaultGemma (Google 2025): Gemma 2 without the norms after the branches."""

from __future__ import annotations

from armllm.models.gemma import GemmaDecoderLayer
from armllm.models.gemma2 import Gemma2ForCausalLM, GemmaAttention


class VaultGemmaDecoderLayer(GemmaDecoderLayer):
    """Gemma 1's layer around Gemma 2's attention."""

    attention_class = GemmaAttention
    norm_names = ("input_layernorm", "pre_feedforward_layernorm")


class VaultGemmaForCausalLM(Gemma2ForCausalLM):
    """Gemma 2's decoder with these layers."""

    layer_class = VaultGemmaDecoderLayer
