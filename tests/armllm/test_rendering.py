"""A template that asks for all memory or time in one expression ends its own process, and nothing else."""

from __future__ import annotations

import pytest

from armllm.errors import CheckpointError, RequestError
from armllm.rendering import Renderer

HELLO = [{"role": "user", "content": "Hello"}]
DOUBLING = "{% set ns = namespace(v=V) %}{% for i in range(99) %}{% set ns.v = ns.v OP ns.v %}{% endfor %}"
HOSTILE = {
    "wide": "{{ messages[0].content | center(10000000000) }}",
    "format": "{{ '%10000000000d' | format(messages | length) }}",
    "doubled": DOUBLING.replace("V", "'Hello'").replace("OP", "~"),
}


def renderer(source):
    return Renderer(source, {}, 10_000)


@pytest.mark.parametrize("kind", HOSTILE)
def test_memory_is_limited_and_the_next_conversation_is_rendered(kind):
    template = renderer("{% if messages | length == 1 %}" + HOSTILE[kind] + "{% else %}fine{% endif %}")
    with pytest.raises(RequestError, match="the chat template"):
        template.render(HELLO)
    assert template.render(HELLO * 2) == "fine"


@pytest.mark.slow  # three seconds of CPU time
def test_time_within_one_operation_is_limited():
    squares = DOUBLING.replace("V", "messages | length + 9").replace("OP", "*")
    template = renderer("{% if messages | length == 1 %}" + squares + "{% else %}fine{% endif %}")
    with pytest.raises(RequestError, match="takes too"):
        template.render(HELLO)
    assert template.render(HELLO * 2) == "fine"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{% if %}", "can't be compiled"),
        ("{{ 'x' | center(10000000000) }}", "MemoryError"),  # computed while it is compiled
        ("{{ 'x' | center(10000000000) ~ 1 }}", "chat template"),
    ],
)
def test_what_cannot_be_compiled_is_said_at_once(source, message):
    with pytest.raises((CheckpointError, RequestError), match=message):
        renderer(source).render(HELLO)


def test_what_the_template_refuses_is_the_requests_fault():
    template = renderer("{{ raise_exception('roles must alternate') }}")
    for _ in range(2):
        with pytest.raises(RequestError, match="roles must alternate"):
            template.render(HELLO)
    with pytest.raises(RequestError, match="can't set self"):
        template.render(HELLO, variables={"self": 1})
