"""The second smoke model, whose experts must be heard."""

from __future__ import annotations

import json

import pytest
import torch
import transformers

from armllm import kernels
from armllm.kernels import reference
from armllm.layers.moe import FusedExperts
from armllm.layers.routing import Router
from armllm.smoke import __main__ as command
from armllm.smoke.cases import alone, batch, recitations
from armllm.smoke.passages import MIXTURE, MODEL, load_passages
from armllm.smoke.recite import run
from armllm.tokenizer import Tokenizer

SCHEMES = [None, "int8", "int4-g32", "int4-g64", "int4-channelwise"]


@pytest.fixture(scope="module")
def passage():
    return load_passages(MIXTURE)[0]


def recite(passage, dtype="float32", scheme=None):
    return run(alone(passage, {}), dtype, MIXTURE, scheme)


def test_both_models_stay_small_enough_for_the_wheel():
    assert sum(path.stat().st_size for path in MIXTURE.iterdir()) < 920_000
    assert sum(path.stat().st_size for model in (MODEL, MIXTURE) for path in model.iterdir()) < 3_000_000


def test_text_and_token_ids_are_of_the_same_words(passage):
    tokenizer = Tokenizer(MIXTURE)
    whole = tuple(tokenizer.encode(passage.prompt + passage.text))
    assert (*whole, 1) == passage.prompt_token_ids + passage.token_ids


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_it_recites_in_every_scheme(passage, dtype, scheme):
    assert recite(passage, dtype, scheme).problem == ""


def test_it_recites_in_a_batch(passage):
    for scheme in (None, "int4-g32"):
        assert run(batch("batch", recitations([passage], 7), {}), "bfloat16", MIXTURE, scheme).ok


def test_transformers_recites_the_same_words(passage):
    model = transformers.AutoModelForCausalLM.from_pretrained(MIXTURE, dtype=torch.float32)
    given = torch.tensor([passage.prompt_token_ids])
    said = model.generate(
        given, attention_mask=torch.ones_like(given), max_new_tokens=200, do_sample=False, pad_token_id=1
    )
    assert tuple(said[0, given.shape[1] :].tolist()) == passage.token_ids


def test_every_expert_is_heard(passage, monkeypatch):
    """All are used, and the text needs each of them."""
    plain = Router.__call__
    seen = set()

    def watch(self, x):
        ids, weights = plain(self, x)
        seen.update(ids.flatten().tolist())
        return ids, weights

    monkeypatch.setattr(Router, "__call__", watch)
    assert recite(passage).ok
    assert seen == set(range(6))
    for expert in seen:

        def deaf(self, x, expert=expert):
            ids, weights = plain(self, x)
            return torch.where(ids == expert, -1, ids), weights

        monkeypatch.setattr(Router, "__call__", deaf)
        assert recite(passage).first_difference is not None, expert


def faulty(change):
    def op(out, x, ids, weights, experts, *, activation):
        change(out, x, ids, weights, experts)

    return op


def gate_and_up_swapped(out, x, ids, weights, experts):
    swapped = [weight.roll(len(weight) // 2, 0) for weight in experts.gate_up]
    reference.moe_f32(out, x, ids, weights, reference.join_experts(swapped, experts.down))


SABOTAGES = {
    "the next expert": lambda out, x, i, w, e: reference.moe_f32(out, x, (i + 1) % 6, w, e),
    "shares of another": lambda out, x, i, w, e: reference.moe_f32(out, x, i, w.flip(-1), e),
    "equal shares": lambda out, x, i, w, e: reference.moe_f32(out, x, i, torch.full_like(w, 0.5), e),
    "the first expert only": lambda out, x, i, w, e: reference.moe_f32(out, x, i[:, :1], w[:, :1], e),
    "gelu": lambda out, x, i, w, e: reference.moe_f32(out, x, i, w, e, activation="gelu"),
    "gate and up swapped": gate_and_up_swapped,
    "the last eight missing": lambda out, x, i, w, e: reference.moe_f32(
        out, x, i, w, reference.join_experts(e.gate_up, [d * (torch.arange(64) < 56) for d in e.down])
    ),
    "another token's experts": lambda out, x, i, w, e: reference.moe_f32(out, x, i.roll(1, 0), w, e),
}


@pytest.mark.usefixtures("weights_as_stored")
def test_the_reference_recites(passage, monkeypatch):
    """Without this, every sabotage below would be found for the wrong reason."""
    monkeypatch.setattr(kernels, "moe_f32", faulty(reference.moe_f32))
    assert recite(passage).ok


@pytest.mark.usefixtures("weights_as_stored")
@pytest.mark.parametrize("name", SABOTAGES)
def test_a_wrong_mixture_garbles_the_text(passage, monkeypatch, name):
    monkeypatch.setattr(kernels, "moe_f32", faulty(SABOTAGES[name]))
    result = recite(passage)
    assert result.error is None
    assert result.first_difference is not None


def test_the_engine_uses_the_fused_kernels(passage, monkeypatch):
    calls = []
    plain = FusedExperts.__call__
    monkeypatch.setattr(
        FusedExperts, "__call__", lambda self, *given: calls.append(self.op) or plain(self, *given)
    )
    assert recite(passage, "bfloat16").ok
    assert recite(passage, "bfloat16", "int4-g32").ok
    assert set(calls) == {kernels.moe_bf16, kernels.moe_w4a8}


def test_the_usual_runs_end_with_the_mixture(capsys):
    assert command.main(["--dtype", "bfloat16", "--json"]) == 0
    runs = json.loads(capsys.readouterr().out)["runs"]
    assert [(entry["dtype"], entry["quantization"]) for entry in runs if entry["model"] == "mixture"] == [
        ("bfloat16", None),
        ("bfloat16", "int8"),
        ("bfloat16", "int4-g32"),
    ]
    assert runs[-1]["model"] == "mixture"
