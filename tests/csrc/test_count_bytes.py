"""Bytes from memory are put to the ops that read them, and what cannot be counted is said."""

from __future__ import annotations

import sys

import pytest

import count_bytes as tool
from armbuild.errors import BuildError


def test_what_was_missed_stands_beside_what_must_be_read():
    norm, qkv = tool.combine("norm 100\nqkv 1000\n", "1 128 0 64\n2 1024 0 0\n3 0 0 0\n")
    assert norm == tool.Count(op="norm", least=100, weights=128, cache=0, others=64)
    assert qkv.total == 1024
    assert tool.read_times([norm, qkv]) == pytest.approx((192 + 1024) / 1100)


def test_a_program_without_the_variable_is_refused(tmp_path):
    with pytest.raises(BuildError, match="has no count_ops"):
        tool.address_of(tool.Path(sys.executable).resolve(), "count_ops")
