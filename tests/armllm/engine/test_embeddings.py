"""Embeddings are pooled from the states that transformers computes, in any batch and any chunks."""

from __future__ import annotations

import asyncio
import json
import random
import shutil

import pytest
import torch

from armllm import LLM, AsyncLLM, EmbeddingRequestOutput, PoolingParams, SamplingParams
from armllm.errors import CheckpointError, RequestError

RNG = random.Random(0)  # noqa: S311 - test data
PROMPTS = [[RNG.randrange(2, 400) for _ in range(length)] for length in (1, 3, 30, 64, 130, 256)]


@pytest.fixture(scope="module")
def checkpoint(make_checkpoint):
    return make_checkpoint()


@pytest.fixture(scope="module")
def llm(checkpoint):
    return LLM(checkpoint.folder, dtype="float32")


def expected(checkpoint, prompt, pooling):
    with torch.inference_mode():
        states = checkpoint.model.model(torch.tensor([prompt])).last_hidden_state[0]
    return {"last": states[-1], "cls": states[0], "mean": states.mean(0)}[pooling]


@pytest.mark.parametrize("pooling", ["last", "mean", "cls"])
@pytest.mark.parametrize(
    "options", [{}, {"max_num_batched_tokens": 7}, {"num_gpu_blocks_override": 17}, {"max_num_seqs": 2}]
)
def test_they_are_pooled_from_the_model_s_states(checkpoint, pooling, options):
    llm = LLM(checkpoint.folder, dtype="float32", **options)
    for _ in range(2):  # cold, then with a hot prefix cache
        outputs = llm.embed(PROMPTS, PoolingParams(pooling=pooling, normalize=False), use_tqdm=False)
        for prompt, output in zip(PROMPTS, outputs, strict=True):
            assert isinstance(output, EmbeddingRequestOutput)
            assert output.prompt_token_ids == prompt
            torch.testing.assert_close(
                torch.tensor(output.outputs.embedding),
                expected(checkpoint, prompt, pooling),
                rtol=0,
                atol=1e-4,
            )
        llm.llm_engine.check_integrity()
        assert llm.stats().num_used_blocks == 0


def test_length_one_and_fewer_dimensions(llm, checkpoint):
    (whole,) = llm.embed(PROMPTS[2], use_tqdm=False)
    assert abs(sum(x * x for x in whole.outputs.embedding) - 1) < 1e-5
    (short,) = llm.embed(PROMPTS[2], PoolingParams(dimensions=8), use_tqdm=False)
    wanted = expected(checkpoint, PROMPTS[2], "last")[:8]
    torch.testing.assert_close(
        torch.tensor(short.outputs.embedding), wanted / wanted.norm(), rtol=0, atol=1e-4
    )


def test_requests_of_several_kinds_are_pooled_in_one_step(llm):
    kinds = [
        PoolingParams(),
        PoolingParams(pooling="mean"),
        PoolingParams(pooling="mean", normalize=False),
        PoolingParams(dimensions=8),
        PoolingParams(task="token_embed"),
        PoolingParams(pooling="mean"),
    ]
    together = llm.encode(PROMPTS, kinds, use_tqdm=False)
    for prompt, kind, output in zip(PROMPTS, kinds, together, strict=True):
        (alone,) = llm.encode(prompt, kind, use_tqdm=False)
        torch.testing.assert_close(output.outputs.data, alone.outputs.data, rtol=0, atol=1e-6)


def test_what_can_not_be_pooled_ends_its_own_request_alone(llm, monkeypatch):
    def finish(mode, states, counts):
        if mode == "mean" and (counts == len(PROMPTS[1])).any():
            raise MemoryError("no room for a mean")
        return states

    monkeypatch.setattr("armllm.engine.pooling._finish", finish)
    for index, prompt in enumerate(PROMPTS):
        llm.llm_engine.add_request(str(index), prompt, PoolingParams(pooling="mean"))
    outputs = {}
    while llm.llm_engine.has_unfinished_requests():
        outputs |= {output.request_id: output for output in llm.llm_engine.step()}
    assert [index for index, output in outputs.items() if output.error is not None] == ["1"]
    assert "no room for a mean" in str(outputs["1"].error)
    assert all(output.embedding for index, output in outputs.items() if index != "1")


def test_the_checkpoint_says_how_to_pool(checkpoint, tmp_path):
    folder = shutil.copytree(checkpoint.folder, tmp_path / "copy")
    (folder / "1_Pooling").mkdir()
    config = folder / "1_Pooling" / "config.json"
    config.write_text(json.dumps({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}))
    (ours,) = LLM(folder, dtype="float32").embed(PROMPTS[2], PoolingParams(normalize=False), use_tqdm=False)
    torch.testing.assert_close(
        torch.tensor(ours.outputs.embedding), expected(checkpoint, PROMPTS[2], "mean"), rtol=0, atol=1e-4
    )
    config.write_text(json.dumps({"pooling_mode_other": True}))
    with pytest.raises(CheckpointError, match="pooling_mode_other"):
        LLM(folder, dtype="float32")


def test_the_checkpoint_says_how_many_numbers_stay(llm, checkpoint, tmp_path):
    """Catches a truncate_dim of sentence-transformers that is left out in silence."""
    folder = shutil.copytree(checkpoint.folder, tmp_path / "copy")
    (folder / "config_sentence_transformers.json").write_text(json.dumps({"truncate_dim": 6}))
    cut = LLM(folder, dtype="float32")
    for params, size in ((PoolingParams(), 6), (PoolingParams(dimensions=9), 9)):
        (wanted,) = llm.embed(PROMPTS[2], PoolingParams(dimensions=size), use_tqdm=False)
        (output,) = cut.embed(PROMPTS[2], params, use_tqdm=False)
        assert output.outputs.embedding == pytest.approx(wanted.outputs.embedding, abs=1e-5)
    (states,) = cut.encode(PROMPTS[2], pooling_task="token_embed", use_tqdm=False)
    assert states.outputs.data.shape == (30, 64)


def test_a_long_text_loses_its_end(llm):
    """As in sentence-transformers, where the options of vLLM ask for it; -1 is what the model takes."""
    text, begin = "fox " * 2000, llm.get_tokenizer().encode("fox " * 2000)
    for most, length in ((5, 5), (-1, 256)):
        options = {"tokenization_kwargs": {"truncate_prompt_tokens": most}, "use_tqdm": False}
        (output,) = llm.embed(text, **options)
        assert output.prompt_token_ids == begin[:length]
        (output,) = llm.encode(begin, **options)
        assert output.prompt_token_ids == begin[:length]
        (score,) = llm.score(text, text, **options)
        assert score.prompt_token_ids == begin[:length] * 2
    for wrong in ({"truncate_prompt_tokens": -2}, {"truncate_prompt_tokens": "5"}, {"padding": True}):
        with pytest.raises(RequestError, match=r"truncate_prompt_tokens (must be|here)"):
            llm.embed(text, tokenization_kwargs=wrong)


def test_scores_are_cosines(llm):
    texts = ["The quick brown fox", "Grüße aus Köln", "東京"]
    vectors = [torch.tensor(output.outputs.embedding) for output in llm.embed(texts, use_tqdm=False)]
    scores = llm.score(texts[0], texts, use_tqdm=False)
    assert [round(score.outputs.score, 5) for score in scores] == [
        round(float(vectors[0] @ vector), 5) for vector in vectors
    ]
    assert abs(scores[0].outputs.score - 1) < 1e-5
    pairs = llm.score(texts[:2], texts[1:], use_tqdm=False)
    assert len(pairs) == 2
    assert pairs[1].prompt_token_ids == [
        *llm.get_tokenizer().encode(texts[1]),
        *llm.get_tokenizer().encode(texts[2]),
    ]
    with pytest.raises(RequestError, match="2 texts can't be compared with 3"):
        llm.score(texts[:2], texts)


def test_texts_and_embeddings_share_the_engine(checkpoint, llm):
    engine = AsyncLLM(str(checkpoint.folder), dtype="float32", max_num_batched_tokens=16)
    alone = [output.outputs.embedding for output in llm.embed(PROMPTS, use_tqdm=False)]

    async def write(number):
        params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
        return [o async for o in engine.generate([number + 2] * 20, params, f"w{number}")][-1]

    async def work():
        embedded = [engine.encode(p, PoolingParams(), f"e{i}") for i, p in enumerate(PROMPTS)]
        dropped = asyncio.ensure_future(engine.encode(PROMPTS[-1], PoolingParams(), "dropped"))
        await asyncio.sleep(0)
        dropped.cancel()
        return await asyncio.gather(*embedded, *map(write, range(3)))

    try:
        *embedded, _, _, _ = asyncio.run(work())
        torch.testing.assert_close(
            torch.tensor([output.outputs.embedding for output in embedded]), torch.tensor(alone)
        )
        while engine.llm_engine.has_unfinished_requests():
            pass
        engine.llm_engine.check_integrity()
    finally:
        engine.shutdown()


@pytest.mark.parametrize(
    ("prompt", "params", "words"),
    [
        ([2] * 257, {}, "257 tokens; that is more"),
        ([], {}, "empty"),
        ([3], {"dimensions": 65}, "dimensions 65 is above the model's 64"),
    ],
)
def test_bad_requests_are_refused(llm, prompt, params, words):
    with pytest.raises(RequestError, match=words):
        llm.embed({"prompt_token_ids": prompt}, PoolingParams(**params), use_tqdm=False)


@pytest.mark.parametrize("params", [{"pooling": "sum"}, {"normalize": 1}, {"dimensions": 0}])
def test_bad_parameters_are_named(params):
    with pytest.raises(RequestError, match=next(iter(params))):
        PoolingParams(**params)
