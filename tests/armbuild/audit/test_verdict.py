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
    ],
    ids=["compiled for it", "vector variants, as in glibc's libmvec"],
)
def test_variants_that_only_sve_code_calls_do_not_raise_the_floor(tmp_path, names, everywhere, dispatched):
    path = tmp_path / "libmvec.so.1"
    path.write_bytes(make_elf([(name, ".text", [PTRUE, RET]) for name in names]))
    report = audit.audit(path)
    assert report.needs_everywhere == everywhere
    assert report.needs_dispatched == dispatched
