"""Quantized matrices of other names: heads, and products that a checkpoint stores in one tensor."""

from __future__ import annotations

import pytest
from tests.armllm.quant.forms import awq, gptq, packed, write_quantized
from tests.armllm.quant.test_checkpoints import AWQ, GPTQ, agrees, compressed

from armllm import LLM
from armllm.errors import CheckpointError

pytestmark = pytest.mark.usefixtures("exact_products")

PHI3 = {
    "architectures": ["Phi3ForCausalLM"],
    "model_type": "phi3",
    "hidden_size": 128,
    "intermediate_size": 256,
    "pad_token_id": 1,
}
FORMS = {
    "gptq": (
        GPTQ | {"desc_act": True, "static_groups": False, "true_sequential": True},
        gptq(4, 32, act_order=True),
    ),
    "awq": (AWQ | {"group_size": 64, "modules_to_not_convert": None}, awq(64)),
    "int4": (compressed("pack-quantized", bits=4, group_size=32, symmetric=False)[0], None),
}


def form_of(method):
    settings, form = FORMS[method]
    return settings, form or packed(settings["config_groups"]["group_0"])


@pytest.mark.parametrize("method", FORMS)
def test_products_that_are_stored_in_one_tensor(make_checkpoint, tmp_path, method):
    """Phi-3 has a qkv_proj and a gate_up_proj."""
    settings, form = form_of(method)
    folder = tmp_path / "model"
    source = make_checkpoint(**PHI3)
    assert any("qkv_proj" in name for name, _ in source.model.named_parameters())
    agrees(folder, write_quantized(folder, source, settings, form))


@pytest.mark.parametrize("method", FORMS)
def test_a_head_of_its_own(make_checkpoint, tmp_path, method):
    """GPTQ says so by "lm_head", compressed-tensors by not ignoring it, AWQ by its tensors alone."""
    settings, form = form_of(method)
    settings = settings | {"gptq": {"lm_head": True}, "awq": {}, "int4": {"ignore": []}}[method]

    def chosen(name):
        return "_proj" in name or name == "lm_head.weight"

    folder = tmp_path / "model"
    source = make_checkpoint(hidden_size=128, intermediate_size=256, tie_word_embeddings=False)
    model = write_quantized(folder, source, settings, form, chosen)
    agrees(folder, model)


@pytest.mark.parametrize("method", FORMS)
def test_a_packed_embedding_is_named(make_checkpoint, tmp_path, method):
    """Catches "missing" of a table that is there, packed by a program of its own."""
    settings, form = form_of(method)
    folder = tmp_path / "model"

    def chosen(name):
        return "_proj" in name or "embed_tokens" in name

    write_quantized(folder, make_checkpoint(hidden_size=128, intermediate_size=256), settings, form, chosen)
    with pytest.raises(CheckpointError, match=r"model.embed_tokens.weight is there only packed"):
        LLM(folder, dtype="float32", skip_tokenizer_init=True)
