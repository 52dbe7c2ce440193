"""What Falcon has of its own: ALiBi."""

from __future__ import annotations

import pytest
import torch
from transformers.models.falcon.modeling_falcon import build_alibi_tensor

from armllm.models.falcon import alibi_slopes


@pytest.mark.parametrize("heads", [1, 6, 32, 71])
def test_slopes_of_alibi_are_those_of_transformers(heads):
    """Which rounds them to bfloat16. Catches the order of the heads where they are no power of two."""
    theirs = build_alibi_tensor(torch.ones(1, 2), heads, torch.float32)[:, 0, 1]
    torch.testing.assert_close(alibi_slopes(heads), theirs, rtol=2**-8, atol=0)
