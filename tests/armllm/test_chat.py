"""Prompts are those of transformers' apply_chat_template, and a template can't hurt or hide an error."""

from __future__ import annotations

import json
import shutil

import pytest
import transformers

from armllm import LLM, SamplingParams
from armllm.chat import ChatTemplate, find_template
from armllm.errors import CheckpointError, RequestError

CHATML = """{%- for message in messages %}
{{- '<|im_start|>' + message['role'] + '\n' + message['content'] | trim + '<|im_end|>' + '\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
"""
TEMPLATES = {
    "chatml": CHATML,
    "bos and loop controls": """{{ bos_token }}
{% for message in messages %}
{% if message.role == 'tool' %}{% continue %}{% endif %}
[{{ message.role }}]{% generation %}{{ message.content }}{% endgeneration %}{{ eos_token }}
{% endfor %}
{% if tools %}{{ tools | tojson(indent=2) }}{% endif %}
{% if add_generation_prompt %}[assistant]{% endif %}
{% set state = namespace(found=false) %}{{ state.found }} {{ style | default('plain') }}
""",
}
CONVERSATION = [
    {"role": "system", "content": "Be brief. Größe & <b>"},
    {"role": "user", "content": " Hello there "},
    {"role": "tool", "content": "42"},
    {"role": "assistant", "content": "Well, "},
]
TOOLS = [{"type": "function", "function": {"name": "größe", "parameters": {"type": "object"}}}]


@pytest.fixture(scope="module")
def base(make_checkpoint):
    return make_checkpoint().folder


def with_template(base, tmp_path, template):
    folder = shutil.copytree(base, tmp_path / "model")
    (folder / "chat_template.jinja").write_text(template)
    return folder


def test_a_template_may_be_a_link_within_the_checkpoint_or_the_hub_s_cache_and_to_nothing_else(tmp_path):
    """Else clients of a server could read a file of its machine, such as a key."""
    folder = tmp_path / "models--a--b" / "snapshots" / "1"
    folder.mkdir(parents=True)
    blob = tmp_path / "models--a--b" / "blobs" / "2"
    blob.parent.mkdir()
    template = folder / "chat_template.jinja"
    for target in (blob, folder / "own.jinja"):
        target.write_text("x")
        template.symlink_to(target)
        assert find_template(folder, {}, tools=False) == "x"
        template.unlink()
    for target in ("../../../key", "../../key", "../key"):
        (folder / target).write_text("secret")
        template.symlink_to(target)
        with pytest.raises(CheckpointError, match=r"is a link to .*/key, outside of the checkpoint"):
            find_template(folder, {}, tools=False)
        template.unlink()


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize(
    "options",
    [
        {"add_generation_prompt": True},
        {"add_generation_prompt": False},
        {"add_generation_prompt": False, "continue_final_message": True},
        {"add_generation_prompt": True, "tools": TOOLS},
    ],
)
def test_prompts_equal_those_of_transformers(base, tmp_path, name, options):
    folder = with_template(base, tmp_path, TEMPLATES[name])
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    expected = theirs.apply_chat_template(CONVERSATION, tokenize=False, **options)
    llm = LLM(folder, dtype="float32")
    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
    (output,) = llm.chat(CONVERSATION, params, use_tqdm=False, **options)
    assert output.prompt == expected
    assert output.prompt_token_ids == theirs(expected, add_special_tokens=False)["input_ids"]
    (same,) = llm.generate(output.prompt_token_ids, params, use_tqdm=False)
    assert same.outputs[0].token_ids == output.outputs[0].token_ids


def test_several_conversations_and_variables(base, tmp_path):
    llm = LLM(with_template(base, tmp_path, TEMPLATES["bos and loop controls"]), dtype="float32")
    outputs = llm.chat(
        [CONVERSATION, CONVERSATION[:2]],
        SamplingParams(max_tokens=1),
        use_tqdm=False,
        chat_template_kwargs={"style": "ornate"},
    )
    assert len(outputs) == 2
    assert all("ornate" in output.prompt for output in outputs)
    assert "Well, " not in outputs[1].prompt


@pytest.mark.parametrize("place", ["tokenizer_config.json", "named", "chat_template.json"])
def test_templates_are_found_wherever_checkpoints_keep_them(base, tmp_path, place):
    folder = shutil.copytree(base, tmp_path / "model")
    path = folder / ("chat_template.json" if place == "chat_template.json" else "tokenizer_config.json")
    content = json.loads(path.read_text()) if path.exists() else {}
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]
    path.write_text(json.dumps(content | {"chat_template": named if place == "named" else "plain"}))
    llm = LLM(folder, dtype="float32")
    params = SamplingParams(max_tokens=1)
    assert llm.chat(CONVERSATION, params, use_tqdm=False)[0].prompt == "plain"
    with_tools = llm.chat(CONVERSATION, params, use_tqdm=False, tools=TOOLS)[0].prompt
    assert with_tools == ("tools" if place == "named" else "plain")
    assert llm.chat(CONVERSATION, params, use_tqdm=False, chat_template="{{ 'mine' }}")[0].prompt == "mine"


def test_a_template_that_asks_for_all_memory_in_one_expression_is_refused(base):
    llm = LLM(base, dtype="float32")
    with pytest.raises(RequestError, match="the chat template"):
        llm.chat(CONVERSATION, chat_template="{{ 'x' | center(10000000000) }}")
    with pytest.raises(RequestError, match="must be JSON"):
        llm.chat(CONVERSATION, chat_template="{{ x }}", chat_template_kwargs={"x": object()})


def test_without_a_template_chat_is_refused(base):
    with pytest.raises(RequestError, match="has no chat template"):
        LLM(base, dtype="float32").chat(CONVERSATION)


@pytest.mark.parametrize(
    ("template", "error", "words"),
    [
        ("{% if %}", CheckpointError, "can't be compiled"),
        ("{{ raise_exception('roles must alternate') }}", RequestError, "roles must alternate"),
        ("{{ messages.nothing.more }}", RequestError, "fails on these messages"),
        ("{{ ''.__class__.__mro__ }}", RequestError, "unsafe"),
        ("{{ messages.append(1) }}", RequestError, "fails on these messages"),
        ("{% for i in range(10 ** 9) %}x{% endfor %}", RequestError, "fails on these messages"),
        ("{{ 'x' * 10 ** 9 }}", RequestError, "too often"),
        ("{{ 10 ** 10 ** 9 }}", RequestError, "too high a power"),
        ("{{ 2 ** (10 ** 9) }}", RequestError, "too high a power"),
    ],
)
def test_a_template_that_fails_or_misbehaves_is_an_error_of_one_line(template, error, words):
    with pytest.raises(error, match=words) as caught:
        ChatTemplate(template, {}).render(CONVERSATION)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([], "at least one message"),
        (["hello"], "must be a dict"),
        ([{"content": "x"}], "with a role"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "'image_url' is not supported"),
        ([{"role": "user", "content": 5}], "not int"),
    ],
)
def test_bad_messages_are_named(messages, words):
    with pytest.raises(RequestError, match=words):
        ChatTemplate(CHATML, {}).render(messages)


def test_parts_of_text_are_joined():
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    prompt = ChatTemplate(CHATML, {}).render([{"role": "user", "content": parts}])
    assert "one\ntwo" in prompt


def test_continuing_needs_the_last_message_in_the_prompt():
    with pytest.raises(RequestError, match="add_generation_prompt=False"):
        ChatTemplate(CHATML, {}).render(CONVERSATION, continue_final_message=True)
    with pytest.raises(RequestError, match="does not show the last message"):
        ChatTemplate("hidden", {}).render(
            CONVERSATION, add_generation_prompt=False, continue_final_message=True
        )


LOOP = "{% for i in range(99999) %}{% for j in range(99999) %}BODY{% endfor %}{% endfor %}"


@pytest.mark.parametrize(
    "body", ["{% if messages[0].role == i %}x{% endif %}", "{% set x = [i].index(i) %}", "x"]
)
def test_a_rendering_has_a_limit_of_time(body):
    template = ChatTemplate(LOOP.replace("BODY", body), {}, max_seconds=0.1)
    with pytest.raises(RequestError, match="it takes too long"):
        template.render(CONVERSATION)


def test_a_rendering_has_a_limit_of_length():
    template = ChatTemplate("{{ messages | length }}" + LOOP.replace("BODY", "x"), {}, max_characters=1000)
    with pytest.raises(RequestError, match="more than 1000 characters"):
        template.render(CONVERSATION)


@pytest.mark.parametrize("name", ["self", "messages", "tools", "continue_final_message"])
def test_variables_have_no_reserved_names(name):
    with pytest.raises(RequestError, match=f"chat_template_kwargs can't set {name}"):
        ChatTemplate("{{ x }}", {}).render(CONVERSATION, variables={"x": 1, name: 1})
    odd = {"x": "fine", "context": 1, "environment": 2, "template": 3, "args": 4, "not a name": 5}
    assert ChatTemplate("{{ x }}", {}).render(CONVERSATION, variables=odd) == "fine"
