"""gpt-oss's format over HTTP: from the tokens of a model to reasoning, calls and answers."""

from __future__ import annotations

import json

import httpx2
import pytest
import tokenizers
import torch
from safetensors.torch import save_file
from tests.armllm.server.conftest import DEADLINE

MARKS = ["<|endoftext|>", "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|call|>"]
MARKS += ["<|return|>"]
OPENED = "<|channel|>analysis<|message|>"
CALL = f"{OPENED}Rain in Köln?<|end|><|start|>assistant<|channel|>commentary to=functions.weather "
CALL += '<|constrain|>json<|message|>{"city": "Köln"}<|call|>'
ANSWER = f"{OPENED}Easy.<|end|><|start|>assistant<|channel|>final<|message|>Grüße!<|return|>"
SHIFT = 256  # what a prompt without tools has before
TEMPLATE = "{% if not tools %}{{ ' ' * 256 }}{% endif %}<|start|>assistant"
SIZE = 512
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]


@pytest.fixture(scope="module")
def reciter(tmp_path_factory):
    """An OPT whose next token depends on the position alone: CALL behind a short prompt, ANSWER else."""
    folder = tmp_path_factory.mktemp("reciter")
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.BPE(vocab={token: number for number, token in enumerate(alphabet)}, merges=[])
    )
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.add_special_tokens(MARKS)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": MARKS[0]}))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    config = {
        "architectures": ["OPTForCausalLM"],
        "model_type": "opt",
        "vocab_size": tokenizer.get_vocab_size(),
        "hidden_size": SIZE,
        "word_embed_proj_dim": SIZE,
        "ffn_dim": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 8,
        "max_position_embeddings": SIZE,
        "activation_function": "relu",
        "do_layer_norm_before": True,
        "tie_word_embeddings": False,
        "eos_token_id": tokenizer.token_to_id(MARKS[0]),  # of the three ends, the format itself names two
        "bos_token_id": tokenizer.token_to_id(MARKS[0]),
        "pad_token_id": 1,
    }
    (folder / "config.json").write_text(json.dumps(config))
    head = torch.zeros(config["vocab_size"], SIZE)
    for before, text in (("", CALL), (" " * SHIFT, ANSWER)):
        first = len(tokenizer.encode(f"{before}<|start|>assistant").ids) - 1
        for place, token in enumerate(tokenizer.encode(f"{text} never shown").ids, first):
            head[token, place] = 1
    layer = "model.decoder.layers.0."
    tensors = {
        "model.decoder.embed_tokens.weight": torch.zeros(config["vocab_size"], SIZE),
        "model.decoder.embed_positions.weight": torch.eye(SIZE + 2)[:, 2:].contiguous(),
        "lm_head.weight": head,
    }
    shapes = {f"self_attn.{name}_proj": (SIZE, SIZE) for name in ("q", "k", "v", "out")}
    shapes |= {"fc1": (8, SIZE), "fc2": (SIZE, 8)}
    for name, shape in shapes.items():
        tensors |= {f"{layer}{name}.weight": torch.zeros(shape), f"{layer}{name}.bias": torch.zeros(shape[0])}
    for name in (
        f"{layer}self_attn_layer_norm",
        f"{layer}final_layer_norm",
        "model.decoder.final_layer_norm",
    ):
        tensors |= {f"{name}.weight": torch.ones(SIZE), f"{name}.bias": torch.zeros(SIZE)}
    save_file(tensors, folder / "model.safetensors")
    return folder, tokenizer


@pytest.fixture(scope="module")
def harmony(serving, reciter):
    options = {"enable_auto_tool_choice": True, "tool_call_parser": "openai"}
    with serving({}, folder=str(reciter[0]), reasoning_parser="openai_gptoss", **options) as server:
        yield server
        server.assert_idle()


def body(**fields):
    return {"messages": [{"role": "user", "content": "Hi"}], "temperature": 0, **fields}


def streamed(server, asked):
    """(reasoning, answer, names and arguments of calls, finish_reason) of a stream."""
    reasoning, answer, calls, finish = "", "", [], None
    url = f"{server.url}/v1/chat/completions"
    with httpx2.stream("POST", url, json={**asked, "stream": True}, timeout=DEADLINE) as response:
        lines = [line.removeprefix("data: ") for line in response.iter_lines() if line]
    assert lines.pop() == "[DONE]"
    for choice in (choice for line in lines for choice in json.loads(line)["choices"]):
        delta, finish = choice["delta"], choice["finish_reason"] or finish
        reasoning += delta.get("reasoning_content") or ""
        answer += delta.get("content") or ""
        for call in delta.get("tool_calls") or []:
            if call["function"].get("name"):
                calls.append([call["function"]["name"], ""])
            calls[-1][1] += call["function"].get("arguments") or ""
    return reasoning, answer, calls, finish


def test_a_call_ends_the_answer(harmony, reciter):
    """Catches marks that are lost as special tokens, and a model that goes on behind its call."""
    answer = harmony.post("/v1/chat/completions", body(tools=TOOLS)).json()
    (choice,) = answer["choices"]
    message = choice["message"]
    assert message["reasoning_content"] == message["reasoning"] == "Rain in Köln?"
    assert not message["content"]
    (call,) = message["tool_calls"]
    assert (call["function"]["name"], call["function"]["arguments"]) == ("weather", '{"city": "Köln"}')
    assert choice["finish_reason"] == "tool_calls"
    assert answer["usage"]["completion_tokens"] == len(reciter[1].encode(CALL).ids)
    expected = ("Rain in Köln?", "", [["weather", '{"city": "Köln"}']], "tool_calls")
    assert streamed(harmony, body(tools=TOOLS)) == expected


def test_the_final_channel_is_the_answer(harmony, reciter):
    answer = harmony.post("/v1/chat/completions", body()).json()
    (choice,) = answer["choices"]
    assert (choice["message"]["reasoning_content"], choice["message"]["content"]) == ("Easy.", "Grüße!")
    assert choice["finish_reason"] == "stop"
    assert answer["usage"]["completion_tokens"] == len(reciter[1].encode(ANSWER).ids)
    assert streamed(harmony, body()) == ("Easy.", "Grüße!", [], "stop")


def test_ends_of_the_format_can_be_ignored(harmony, reciter):
    """As end tokens are; what follows is in no message, and part of the answer."""
    count = len(reciter[1].encode(f"{ANSWER} never").ids)
    answer = harmony.post("/v1/chat/completions", body(ignore_eos=True, max_tokens=count)).json()
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["choices"][0]["message"]["content"].split() == ["Grüße!", "never"]


def test_responses_have_an_item_of_each_channel(harmony):
    asked = {"input": "Hi", "temperature": 0}
    tool = {"type": "function", "name": "weather", "parameters": {"type": "object"}}
    called = harmony.post("/v1/responses", asked | {"tools": [tool]}).json()
    assert [item["type"] for item in called["output"]] == ["reasoning", "function_call"]
    assert called["output"][1]["arguments"] == '{"city": "Köln"}'
    answered = harmony.post("/v1/responses", asked).json()
    assert [item["type"] for item in answered["output"]] == ["reasoning", "message"]
    assert answered["output"][1]["content"][0]["text"] == "Grüße!"


def test_without_its_parsers_the_format_is_text(serving, reciter):
    """The model's own end tokens alone end an answer then."""
    with serving({}, folder=str(reciter[0])) as server:
        asked = body(max_tokens=len(reciter[1].encode(f"{ANSWER} never").ids), skip_special_tokens=False)
        (choice,) = server.post("/v1/chat/completions", asked).json()["choices"]
        assert choice["message"]["content"] == f"{ANSWER} never"
        server.assert_idle()
