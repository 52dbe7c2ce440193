"""What a file's functions say together: compiled for a feature throughout, or choosing among variants."""

import pytest
from tests.armbuild.audit.conftest import RET, make_elf

from armbuild import audit

PTRUE = 0x2598E3E0  # ptrue p0.s


@pytest.mark.parametrize(
    ("names", "everywhere", "dispatched"),
    [
        ([f"f{number}" for number in range(24)], {"sve"}, set()),
        ([f"_ZGVsMxv_f{number}" for number in range(24)], set(), {"sve"}),
        ([f"{kind}{number}" for kind in ("_ZGVsMxv_f", "slow") for number in range(24)], set(), {"sve"}),
        (["_ZGVsMxv_f", *(f"f{number}" for number in range(24))], {"sve"}, set()),
    ],
    ids=["compiled for it", "vector variants", "with slow paths, as in glibc's libmvec", "one among others"],
)
def test_variants_that_only_sve_code_calls_do_not_raise_the_floor(tmp_path, names, everywhere, dispatched):
    path = tmp_path / "libmvec.so.1"
    path.write_bytes(make_elf([(name, ".text", [PTRUE, RET]) for name in names]))
    report = audit.audit_path(path)
    assert report.needs_everywhere == everywhere
    assert report.needs_dispatched == dispatched
