"""Our names of weights as options of optimum-intel's exporter."""

from __future__ import annotations

import pytest

from armllm.errors import RequestError
from armllm.openvino.conversion import weight_options

INT4 = "int4 --sym --ratio 1.0 --group-size"


@pytest.mark.parametrize(
    ("quantization", "dtype", "options"),
    [
        (None, "auto", "bf16"),
        (None, "float32", "fp32"),
        (None, "half", "fp16"),
        ("int8", "auto", "int8"),
        ("int4", "auto", f"{INT4} 128 --group-size-fallback adjust"),
        ("int4-g64", "auto", f"{INT4} 64 --group-size-fallback error"),
        ("int4-channelwise", "auto", f"{INT4} -1 --group-size-fallback adjust"),
    ],
)
def test_options_of_the_exporter(quantization, dtype, options):
    assert " ".join(weight_options(quantization, dtype)) == f"--weight-format {options}"


def test_8_bits_in_groups_are_refused():
    with pytest.raises(RequestError, match="have no groups; take int8"):
        weight_options("int8-g32", "auto")
