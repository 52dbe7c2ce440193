"""The model's name in a request chooses the adapter; adapters come and go while others are served."""

from __future__ import annotations

import json
import threading

import openai
import pytest
import transformers
from tests.armllm.adapters import write_adapter

from armllm import LLM, LoRARequest, SamplingParams
from armllm.cli import main
from armllm.environment import may_change_adapters
from armllm.errors import CheckpointError, RequestError
from armllm.server.adapters import parse_modules
from armllm.server.engine_process import EngineProcess
from armllm.smoke.passages import MODEL

PROMPT = "A wheel"
NAMES = ("first", "second")
EVERY = {"ignore_eos": True}
OPTIONS = {"enable_lora": True, "max_loras": 2, "max_cpu_loras": 3, "max_num_seqs": 16}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Two adapters of the smoke model."""
    model = transformers.AutoModelForCausalLM.from_pretrained(MODEL)
    root = tmp_path_factory.mktemp("adapters")
    return {
        name: write_adapter(root / name, model, ("q_proj", "o_proj", "down_proj"), seed=seed, lora_alpha=16)
        for seed, name in enumerate(NAMES)
    }


@pytest.fixture(scope="module")
def expected(folders):
    """Texts of the base (None) and of each adapter."""
    llm = LLM(str(MODEL), dtype="float32", **OPTIONS)
    params = SamplingParams(temperature=0, max_tokens=12)
    requests = {
        None: None,
        **{name: LoRARequest(name, n + 1, str(path)) for n, (name, path) in enumerate(folders.items())},
    }
    found = {
        name: llm.generate(PROMPT, params, lora_request=request, use_tqdm=False)[0].outputs[0].text
        for name, request in requests.items()
    }
    assert len(set(found.values())) == 3
    return found


@pytest.fixture(scope="module")
def server(serving, folders):
    adapters = parse_modules([f"first={folders['first']}"])
    with serving(OPTIONS, adapters=adapters, may_change_adapters=True) as served:
        yield served


def complete(server, model, **options):
    body = {"model": model, "prompt": PROMPT, "max_tokens": 12, "temperature": 0, **options}
    return server.post("/v1/completions", body)


def load(server, name, path, **options):
    return server.post("/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(path), **options})


def unload(server, name, **options):
    return server.post("/v1/unload_lora_adapter", {"lora_name": name, **options})


def test_the_name_chooses_the_adapter(server, expected):
    for model, name in (("smoke", None), ("first", "first"), ("alias", None)):
        answer = complete(server, model).json()
        assert answer["choices"][0]["text"] == expected[name]
        assert answer["model"] == ("first" if name else "smoke")
    client = server.openai()
    chat = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 8, "temperature": 0}
    texts = {}
    for model in ("smoke", "first"):
        stream = client.chat.completions.create(model=model, stream=True, **chat)
        chunks = list(stream)
        assert {chunk.model for chunk in chunks} == {model}
        texts[model] = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        response = client.responses.create(model=model, input=PROMPT, max_output_tokens=8, temperature=0)
        assert response.model == model
    assert texts["smoke"] != texts["first"]
    vectors = [client.embeddings.create(model=model, input=PROMPT).data[0].embedding for model in texts]
    assert vectors[0] != vectors[1]


def test_the_list_of_models(server, folders):
    cards = {card.id: card for card in server.openai().models.list()}
    assert set(cards) == {"smoke", "alias", "first"}
    assert (cards["first"].parent, cards["first"].root) == ("smoke", str(folders["first"]))
    assert cards["smoke"].parent is None
    assert server.openai().models.retrieve("first").parent == "smoke"


def test_adapters_come_and_go(server, folders, expected):
    assert complete(server, "second").status_code == 404
    answer = load(server, "second", folders["second"])
    assert answer.status_code == 200, answer.text
    assert complete(server, "second").json()["choices"][0]["text"] == expected["second"]
    assert "is loaded already" in load(server, "second", folders["second"]).json()["error"]["message"]
    assert load(server, "second", folders["first"], load_inplace=True).status_code == 200
    assert complete(server, "second").json()["choices"][0]["text"] == expected["first"]
    assert unload(server, "second", lora_int_id=1).status_code == 404
    assert unload(server, "second").status_code == 200
    assert unload(server, "second").status_code == 404
    with pytest.raises(openai.NotFoundError, match="'second' does not exist"):
        server.openai().completions.create(model="second", prompt=PROMPT)


def test_a_running_request_keeps_its_adapter(server, folders, expected):
    """Unloaded after its first token, it goes on to the end that it would have had."""
    assert load(server, "second", folders["second"]).status_code == 200
    stream = server.openai().completions.create(
        model="second",
        prompt=PROMPT,
        max_tokens=60,
        temperature=0,
        stream=True,
        extra_body=EVERY,
    )
    first = next(iter(stream)).choices[0].text
    assert unload(server, "second").status_code == 200
    rest = "".join(chunk.choices[0].text for chunk in stream)
    assert (first + rest).startswith(expected["second"])
    server.assert_idle()


def test_several_clients_at_once(server, folders, expected):
    """All adapters and the base in the same steps."""
    assert load(server, "second", folders["second"]).status_code == 200
    models = {"smoke": None, "first": "first", "second": "second"}
    found = []
    threads = [
        threading.Thread(
            target=lambda model=model, name=name: found.append(
                complete(server, model).json()["choices"][0]["text"] == expected[name]
            )
        )
        for model, name in list(models.items()) * 4
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 12
    assert unload(server, "second").status_code == 200


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"lora_name": "x", "lora_path": "/nowhere"}, "adapter '/nowhere' is not a folder"),
        ({"lora_name": "x", "lora_path": str(MODEL)}, "has no adapter_config.json"),
        ({"lora_name": "smoke", "lora_path": "y"}, "'smoke' is the name of the model"),
        ({"lora_name": "", "lora_path": "y"}, "lora_name"),
        ({"lora_name": "x"}, "lora_path"),
        ({"lora_name": "x", "lora_path": "y", "other": 1}, "other"),
    ],
)
def test_what_cannot_be_loaded(server, body, message):
    answer = server.post("/v1/load_lora_adapter", body)
    assert answer.status_code == 400
    assert message in answer.json()["error"]["message"]
    assert complete(server, "x").status_code == 404


def test_adapters_stay_as_they_are_unless_it_is_allowed(serving, folders, monkeypatch):
    with serving(OPTIONS) as server:
        assert load(server, "first", folders["first"]).status_code == 404
    assert not may_change_adapters()
    monkeypatch.setenv("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "True")
    assert may_change_adapters()
    monkeypatch.setenv("ARMLLM_ALLOW_RUNTIME_LORA_UPDATING", "0")
    assert not may_change_adapters()
    monkeypatch.setenv("ARMLLM_ALLOW_RUNTIME_LORA_UPDATING", "maybe")
    with pytest.raises(RequestError, match="ARMLLM_ALLOW_RUNTIME_LORA_UPDATING must be 1 or 0"):
        may_change_adapters()


def test_a_server_in_two_processes(start, folders, expected):
    """`armllm serve` with both forms of --lora-modules, and a load over HTTP."""
    second = f'{{"name": "second", "path": "{folders["second"]}", "base_model_name": "base"}}'
    process = start(
        *(MODEL, "--dtype", "float32", "--enable-lora", "--max-loras", "2", "--served-model-name", "smoke"),
        *("--lora-modules", f"first={folders['first']}", "--lora-modules", second),
        VLLM_ALLOW_RUNTIME_LORA_UPDATING="1",
    )
    client = openai.OpenAI(base_url=f"{process.wait_ready()}/v1", api_key="none", max_retries=0)
    assert {card.id: card.parent for card in client.models.list()} == {
        "smoke": None,
        "first": "smoke",
        "second": "base",
    }
    ask = {"prompt": PROMPT, "max_tokens": 12, "temperature": 0}
    third = {"lora_name": "third", "lora_path": str(folders["first"])}
    client.post("/load_lora_adapter", cast_to=str, body=third)
    for model, name in (("first", "first"), ("second", "second"), ("third", "first")):
        assert client.completions.create(model=model, **ask).choices[0].text == expected[name]
    with pytest.raises(openai.BadRequestError, match="is not a folder"):
        client.post("/load_lora_adapter", cast_to=str, body={"lora_name": "x", "lora_path": "/nowhere"})
    client.post("/unload_lora_adapter", cast_to=str, body={"lora_name": "third"})
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="third", **ask)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (["a"], "must be name=path or a JSON object"),
        (["=x"], "must be name=path"),
        (["a=x", "a=y"], "the name 'a' occurs twice"),
        (['{"name": "a"}'], "needs objects with name, path"),
        (['{"name": "a", "path": "x", "other": 1}'], "needs objects with name, path"),
        (['[{"name": "a", "path": 1}]'], "needs objects with name, path"),
        (["{"], "is not JSON"),
    ],
)
def test_modules_that_cannot_be_read(values, message):
    with pytest.raises(RequestError, match=message):
        parse_modules(values)


def test_what_the_command_refuses(capsys, folders):
    assert main(["serve", str(MODEL), "--lora-modules", "a=b"]) == 2
    assert "--lora-modules needs --enable-lora" in capsys.readouterr().err
    assert main(["serve", str(MODEL), "--enable-lora", "--lora-modules", f"{MODEL}=b"]) == 2
    assert "is the name of the model, too" in capsys.readouterr().err


def test_an_adapter_that_cannot_be_read_ends_the_start():
    with pytest.raises(CheckpointError, match="adapter '/nowhere' is not a folder"):
        EngineProcess(str(MODEL), [LoRARequest("a", 1, "/nowhere")], dtype="float32", enable_lora=True)


def test_a_file_of_requests_names_adapters(folders, expected, tmp_path):
    """It would catch `run-batch --lora-modules` that answers with the base model."""
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    body = {"prompt": PROMPT, "max_tokens": 12, "temperature": 0}
    lines = [
        {"custom_id": name, "method": "POST", "url": "/v1/completions", "body": {**body, "model": name}}
        for name in ("smoke", *NAMES)
    ]
    source.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    modules = [f"{name}={path}" for name, path in folders.items()]
    command = ["run-batch", "-i", str(source), "-o", str(target), "--model", str(MODEL), "--dtype", "float32"]
    command += [
        "--served-model-name",
        "smoke",
        "--enable-lora",
        "--max-loras",
        "2",
        "--lora-modules",
        *modules,
    ]
    assert main(command) == 0
    answers = [json.loads(line)["response"]["body"] for line in target.read_text().splitlines()]
    assert [answer["model"] for answer in answers] == ["smoke", *NAMES]
    assert [answer["choices"][0]["text"] for answer in answers] == [expected[name] for name in (None, *NAMES)]
