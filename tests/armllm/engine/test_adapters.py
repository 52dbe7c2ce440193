"""Adapters in memory are at hand at once, whatever the files of others do."""

import threading
from types import SimpleNamespace

import pytest

from armllm import LoRARequest
from armllm.engine.adapters import AdapterCache

DEADLINE = 60.0  # seconds, within which nothing here takes long
FIRST, SLOW = (LoRARequest(name, number, f"/{name}") for number, name in enumerate(("first", "slow"), 1))


@pytest.fixture
def cache(monkeypatch):
    """A cache that reads names; ``cache.begun`` tells that it reads SLOW, which ends with ``cache.end``."""
    begun, end = threading.Event(), threading.Event()

    def read(_, request):
        if request == SLOW:
            begun.set()
            assert end.wait(DEADLINE)
        return request.lora_name

    monkeypatch.setattr(AdapterCache, "_read", read)
    made = AdapterCache(SimpleNamespace(enable_lora=True, max_cpu_loras=2, max_loras=1), {})
    made.begun, made.end = begun, end
    yield made
    end.set()


def test_an_adapter_that_takes_long_to_read_holds_up_no_other(cache):
    """Else its patterns, of up to 20 s, held up the requests of all adapters, and the event loop."""
    cache.get(FIRST)
    found = []
    readers = [threading.Thread(target=lambda: found.append(cache.get(SLOW))) for _ in range(2)]
    others = threading.Thread(
        target=lambda: found.extend([cache.get(FIRST), cache.forget(9), cache.numbers()])
    )
    for reader in readers:
        reader.start()
    assert cache.begun.wait(DEADLINE)
    others.start()
    others.join(DEADLINE / 6)
    assert found == ["first", False, {1}]
    cache.end.set()
    for reader in readers:
        reader.join(DEADLINE)
    assert found[3:] == ["slow", "slow"]
    assert cache.numbers() == {1, 2}
