from __future__ import annotations

import pytest

from armllm.smoke.passages import Passage, load_passages


@pytest.fixture(scope="session")
def passages() -> tuple[Passage, ...]:
    return load_passages()
