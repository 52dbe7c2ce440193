"""Texts that are replayed have the bits of those that are computed, whatever the encoder."""

from __future__ import annotations

import pytest
import torch
from tests.armllm.models.encoder_configs import ENCODERS, load, prompts, random_config, save_reference

from armllm.engine import recorded_texts

STEPS = [(7,), (7,), (30, 7), (7,), (30, 7), (30, 7), (20, 17), (64,), (64,), (64,), (1,), (1,), (1,)]

KINDS = [name for name in ENCODERS if name.endswith("Model")]


class Counted:
    """Computes each step without a recording, too."""

    def __init__(self, llm):
        self.texts = llm.llm_engine.runner.texts
        self.run, self.texts.run = self.texts.run, self
        self.model, self.replayed = self.texts._model, 0

    def __call__(self, x, places):
        found = self.run(x, places)
        if found is not None:
            self.replayed += 1
            assert torch.equal(found, self.model(x.token_ids, places, x.metadata, x.rows))
        return found


@pytest.mark.parametrize("architecture", KINDS)
def test_steps_that_come_again_are_replayed_with_the_same_bits(tmp_path, architecture):
    """Catches inputs, tables and caches that a recording does not read anew."""
    save_reference(tmp_path, random_config(architecture, 1))
    llm = load(tmp_path)
    counted = Counted(llm)
    held = []
    for seed, lengths in enumerate(STEPS):
        given = [{"prompt_token_ids": ids} for ids in prompts(seed, lengths)]
        outputs = llm.encode(given, pooling_task="embed", use_tqdm=False)
        held += [(output.outputs.data, output.outputs.data.clone()) for output in outputs]
    assert counted.texts.refused is None
    assert counted.replayed >= 8
    assert all(torch.equal(one, then) for one, then in held), "a later step wrote over an answer"


def test_what_is_too_long_or_has_segments_is_computed(tmp_path, monkeypatch):
    save_reference(tmp_path, random_config("BertModel", 0))
    llm = load(tmp_path)
    monkeypatch.setattr(llm.llm_engine.runner.texts, "most_tokens", 20)
    for _ in range(3):
        llm.embed([{"prompt_token_ids": prompts(0, (21,))[0]}], use_tqdm=False)
    assert not llm.llm_engine.runner.texts.recordings


@pytest.mark.parametrize("options", [{"quantization": "int8"}, {"dtype": "bfloat16"}])
def test_steps_with_int8_weights_or_in_bf16_are_replayed(tmp_path, options):
    save_reference(tmp_path, random_config("BertModel", 1))
    llm = load(tmp_path, **options)
    counted = Counted(llm)
    for seed, lengths in enumerate(STEPS):
        llm.embed([{"prompt_token_ids": ids} for ids in prompts(seed, lengths)], use_tqdm=False)
    assert counted.texts.refused is None
    assert counted.replayed >= 8


def test_old_recordings_make_room_when_replays_have_paid_for_a_new_one(tmp_path, monkeypatch):
    """Catches texts of many lengths that are recorded again and again."""
    monkeypatch.setattr(recorded_texts, "MOST_RECORDINGS", 2)
    save_reference(tmp_path, random_config("BertModel", 0))
    llm = load(tmp_path)

    def lengths_after(*lengths):
        for length in lengths:
            llm.embed([{"prompt_token_ids": prompts(0, (length,))[0]}], use_tqdm=False)
        return [key[1] for key in llm.llm_engine.runner.texts.recordings]

    assert lengths_after(3, 3, 4, 4, 5, 5, 6, 6, 5, 6) == [3, 4]
    assert lengths_after(*[3] * recorded_texts.REPLAYS_FOR_ONE, 5) == [3, 5]
    assert lengths_after(4, 6) == [3, 5]


def test_an_operation_that_is_not_known_is_named_and_nothing_is_recorded(tmp_path, caplog):
    save_reference(tmp_path, random_config("BertModel", 0))
    llm = load(tmp_path)
    texts, layers = llm.llm_engine.runner.texts, llm.llm_engine.runner.model.layers
    first = layers[0]
    layers[0] = lambda x, metadata, rows: first(x + torch.rand(()) * 0, metadata, rows)
    with caplog.at_level("INFO"):
        for _ in range(3):
            llm.embed([{"prompt_token_ids": prompts(0, (7,))[0]}], use_tqdm=False)
    assert texts.refused is not None
    assert "steps of texts are not recorded: the model calls aten.rand" in caplog.text
    assert not texts.recordings
