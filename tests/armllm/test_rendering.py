"""A template that asks for all memory or time in one expression ends its own process, and nothing else."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from armllm.errors import CheckpointError, RequestError
from armllm.rendering import COMPILE_BYTES, Renderer

HELLO = [{"role": "user", "content": "Hello"}]
DOUBLING = "{% set ns = namespace(v=V) %}{% for i in range(99) %}{% set ns.v = ns.v OP ns.v %}{% endfor %}"
HOSTILE = {
    "wide": "{{ messages[0].content | center(10000000000) }}",
    "format": "{{ '%10000000000d' | format(messages | length) }}",
    "repeated": "{{ messages[0].content * 1000000000 }}",
    "items": "{{ ([messages] * 1000000 * 1000000) | length }}",
    "replaced": "{% set s = 'a' * 1000000 %}{{ s.replace('a', s) | length }}",
    "digits": "{{ '%.10000000000f' % (messages | length) }}",
    "wide by a variable": "{{ '{:{w}}'.format('a', w=9999999999) }}",
    "tabs": "{{ (messages[0].content ~ '\t').expandtabs(2000000000) }}",
    "range": "{% for i in range(10 ** 12) %}{% endfor %}",
    "macro": "{% macro m(n) %}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}",
    "loop": "{% for x in [messages] recursive %}{{ loop([messages]) }}{% endfor %}",
    "deep": "{% set ns = namespace(v=[]) %}{% for i in range(9999) %}{% set ns.v = [ns.v] %}{% endfor %}"
    "{{ ns.v | tojson }}",
    "indented": "{{ messages | tojson(indent=1000000000) }}",
    "long": "{% for i in range(99999) %}{{ 'a' * 1000000 }}{% endfor %}",
    "terminal": "{{ raise_exception('\x1b[2J' ~ 'a' * 100000) }}",
    "names": "{{ cycler.__init__.__globals__.os.system('id') }}",
    "file": "{% include '/etc/passwd' %}",
    "doubled": DOUBLING.replace("V", "'Hello'").replace("OP", "~"),
}


def renderer(source):
    return Renderer(source, {}, 10_000)


@pytest.mark.parametrize("kind", HOSTILE)
def test_memory_is_limited_and_the_next_conversation_is_rendered(kind):
    template = renderer("{% if messages | length == 1 %}" + HOSTILE[kind] + "{% else %}fine{% endif %}")
    with pytest.raises(RequestError, match="the chat template") as caught:
        template.render(HELLO)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 300
    assert template.render(HELLO * 2) == "fine"


def test_constants_of_a_template_are_not_kept_in_a_gigabyte():
    """Jinja computes them when it compiles, and keeps them as long as the server runs."""
    template = renderer("{{ [[1]] | tojson(indent=1000000000) }}")
    pages = Path(f"/proc/{template._process._process.pid}/statm").read_text().split()
    assert int(pages[1]) * resource.getpagesize() < COMPILE_BYTES
    with pytest.raises(RequestError, match="the chat template"):
        template.render(HELLO)


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
        ("{{ messages" + ".a" * 20_000 + " }}", "can't be compiled"),
        ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "can't be compiled"),
        ("{% if 1 %}" * 2000 + "{% endif %}" * 2000, "can't be compiled"),
        ("{% call m() %}" * 300 + "{% endcall %}" * 300, "can't be compiled"),
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
