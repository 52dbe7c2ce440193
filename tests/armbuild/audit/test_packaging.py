"""A wheel that is wrong in one way fails with a sentence that names that way; a right one passes."""

from __future__ import annotations

import shutil

import pytest

from armbuild.audit import audit_path
from armbuild.errors import UsageError
from armisa.errors import IsaError

SUFFIX = ".cpython-311-aarch64-linux-gnu.so"
INFO = "demo-1.0.dist-info"
RET, PACIASP = 0xD65F03C0, 0xD503233F


def only_error(path, word, **options):
    report = audit_path(path, **options)
    assert not report.ok
    assert len(report.errors) == 1, report.errors
    assert word in report.errors[0]


def test_a_right_wheel_passes(wheel, elf):
    report = audit_path(wheel({f"demo/x{SUFFIX}": elf()}))
    assert report.errors == ()
    assert report.tag == "cp311-cp311-manylinux_2_28_aarch64"
    assert report.policy.name.startswith("manylinux")
    assert report.lowest_core == "any Armv8.0-A core"


def test_a_pure_wheel_passes(wheel):
    assert audit_path(wheel({"demo/__init__.py": b""}, tag="py3-none-any")).ok


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("x.cpython-311-x86_64-linux-gnu.so", "another machine"),
        ("x.cpython-313-aarch64-linux-gnu.so", "another Python"),
        ("x.cpython-311t-aarch64-linux-gnu.so", "free threading"),
        ("x.cpython-311-aarch64-linux-musl.so", "another C library"),
    ],
)
def test_suffix_must_fit_tag_and_machine(wheel, elf, name, word):
    only_error(wheel({f"demo/{name}": elf()}), word)


def test_elf_of_another_machine_is_found(wheel, elf):
    report = audit_path(wheel({"demo/x.so": elf(machine=62)}))
    assert "an ELF file for x86_64 in a wheel for aarch64" in report.errors[0]


def test_elf_in_a_wheel_for_any_machine_is_found(wheel, elf):
    only_error(wheel({"demo/x.so": elf()}, tag="py3-none-any"), "any machine")


def test_machine_wheel_without_elf_is_found(wheel):
    only_error(wheel({"demo/__init__.py": b""}), "no ELF file")


def test_renamed_wheels_are_found(wheel, elf, tmp_path):
    path = wheel({f"demo/x{SUFFIX}": elf()})
    other = tmp_path / "demo-2.0-cp311-cp311-manylinux_2_28_aarch64.whl"
    shutil.copy(path, other)
    only_error(other, "METADATA says 1.0")
    other = tmp_path / "other-1.0-cp311-cp311-manylinux_2_28_aarch64.whl"
    shutil.copy(path, other)
    only_error(other, "METADATA says demo")
    other = tmp_path / "demo-1.0-cp311-cp311-manylinux_2_17_aarch64.whl"
    shutil.copy(path, other)
    only_error(other, "are not those of WHEEL")
    other = tmp_path / "whatever.whl"
    shutil.copy(path, other)
    assert "not a wheel's file name" in audit_path(other).errors[0]


def test_record_must_list_every_file_with_its_hash(wheel, elf):
    files = {f"demo/x{SUFFIX}": elf()}

    def swapped(column, value):
        return lambda rows: [
            [*row[:column], value, *row[column + 1 :]] if row[0].startswith("demo/x") else row for row in rows
        ]

    only_error(wheel(files, record=swapped(1, "sha256=AAAA")), "does not match its hash")
    only_error(wheel(files, record=swapped(1, "")), "no usable hash")
    only_error(wheel(files, record=swapped(1, "md5=AAAA")), "no usable hash")
    only_error(wheel(files, record=swapped(2, 5)), "RECORD says 5 bytes")
    only_error(wheel(files, record=lambda rows: rows[1:]), "not listed in RECORD")
    only_error(wheel(files, record=lambda rows: [*rows, ["gone.py", "sha256=AA", 1]]), "not in the wheel")
    only_error(wheel(files, record=lambda rows: [*rows, rows[0]]), "twice")
    # beside RECORD only its own signatures have no hash
    more = {**files, "demo-1.0.dist-info/RECORD.py": b"x"}
    bare = wheel(more, record=lambda rows: [[row[0], "", ""] if "D.py" in row[0] else row for row in rows])
    only_error(bare, "no usable hash of demo-1.0.dist-info/RECORD.py")
    more = {**files, "demo/x.dist-info/RECORD.jws": b"x"}
    unlisted = wheel(more, record=lambda rows: [row for row in rows if ".jws" not in row[0]])
    only_error(unlisted, "not listed in RECORD")


def test_alignment_for_the_largest_pages(wheel, elf):
    only_error(wheel({f"demo/x{SUFFIX}": elf(align=0x1000)}), "64 KiB")


def test_executable_stack_and_writable_code(wheel, elf):
    only_error(wheel({f"demo/x{SUFFIX}": elf(stack_flags=7)}), "executable stack")
    only_error(wheel({f"demo/x{SUFFIX}": elf(load_flags=7)}), "writable and executable")


def test_debug_information_is_an_error_in_our_own_wheel_only(wheel, own_wheel, elf):
    report = audit_path(wheel({f"demo/x{SUFFIX}": elf(debug=True)}))
    assert report.ok
    assert "debug information" in report.warnings[0]
    only_error(own_wheel(debug=True), "debug information")


def test_our_wheel_is_right(own_wheel):
    report = audit_path(own_wheel(), expect_targets={"neon"})
    assert report.errors == ()
    assert report.kernel_targets == ("neon",)
    assert report.floor == "armv8-a"


def test_our_wheel_must_hold_the_targets_that_it_states(own_wheel):
    only_error(own_wheel(info={"targets": ["neon", "bf16"]}), "build_info.json says bf16, neon")
    only_error(own_wheel(), "expected neon, scalar", expect_targets={"neon", "scalar"})
    only_error(own_wheel(info={"machine": "x86_64"}), "build_info.json says x86_64")
    only_error(own_wheel(info={"version": "9"}), "version 9")


def test_a_document_in_too_many_brackets_is_an_error_of_that_wheel(wheel):
    """Else the audit of all wheels of a command would end there, without the name of one."""
    path = wheel({"armllm/build_info.json": b"[" * 100_000}, tag="py3-none-any")
    assert any("build_info.json is not JSON" in error for error in audit_path(path).errors)
    path = wheel({f"{INFO}/variant.json": b"[" * 100_000}, tag="py3-none-any")
    path = path.rename(path.with_name(path.name.replace("-any.", "-any-fast.")))
    assert any("variant.json is not what" in error for error in audit_path(path).errors)


def test_our_wheel_must_be_labeled_with_its_baseline(own_wheel):
    only_error(own_wheel(info={"baseline": "neoverse-v1"}), "local label")
    assert audit_path(own_wheel(info={"baseline": "neoverse-v1"}, version="1.0+neoverse.v1")).errors == ()


def test_our_wheel_must_not_bundle_what_torch_brings(own_wheel, elf):
    only_error(own_wheel(extra={"armllm.libs/libgomp-1234.so.1": elf()}), "libgomp")


@pytest.mark.parametrize("save", [0xA9BF7BFD, 0xA9017BFD, 0xF81F0FFE, 0xF90007FE])
@pytest.mark.parametrize("section", ["armllm.neon", ".text"])
def test_functions_of_our_wheel_must_sign_the_return_addresses_that_they_save(
    own_wheel, wheel, elf, save, section
):
    """STP and STR of X30 to the stack; catches a file that was compiled without branch protection."""
    kernel = ("k", "armllm.neon", [RET])
    bare, signed = (("g", section, [*words, save, RET]) for words in ((), (PACIASP,)))
    only_error(own_wheel(functions=(kernel, bare)), f"functions in {section} do not sign")
    assert audit_path(own_wheel(functions=(kernel, bare, signed))).errors == ()
    assert audit_path(wheel({f"demo/x{SUFFIX}": elf((bare,))})).errors == ()


def test_two_openmp_runtimes_are_warned_of(wheel, elf):
    report = audit_path(
        wheel({f"demo/x{SUFFIX}": elf(), "demo.libs/libgomp-1.so.1": elf(), "demo.libs/libomp.so": elf()})
    )
    assert any("more than one OpenMP" in warning for warning in report.warnings)


def test_unknown_paths_and_floors_are_usage_errors(tmp_path, wheel):
    for action in (
        lambda: audit_path(tmp_path / "missing.whl"),
        lambda: audit_path(wheel({}), floor="armv99-a"),
        lambda: audit_path(wheel({}), floor="neoverse-q1"),
        lambda: audit_path(wheel({}), floor="armv8-a+nothing"),
        lambda: audit_path(wheel({}), guards=["no equals sign"]),
    ):
        with pytest.raises((UsageError, IsaError)) as caught:
            action()
        assert len(str(caught.value).splitlines()) <= 2


@pytest.mark.parametrize("section", ["console_scripts", "gui_scripts"])
@pytest.mark.parametrize("name", ["../../evil", "/bin/evil", "..", "a/b", "a\\b", "\x1b[31m"])
def test_a_program_outside_of_the_folder_of_programs_is_an_error(wheel, section, name):
    """pip writes it under another name, uv refuses it, and other installers may write it there."""
    text = f"[thing]\na/b = x:y\n[{section}]\n# a/b\nthing = thing:main\n{name} = thing:main\n"
    path = wheel({f"{INFO}/entry_points.txt": text.encode()}, tag="py3-none-any")
    only_error(path, f"entry_points.txt: {name!r} is no name of a program")


def test_usual_names_of_programs_are_none(wheel):
    text = b"[console_scripts]\n; a/b\nthing-x.y = thing:main [extra]\n\n[gui_scripts]\nthing 2=a:b\n"
    assert audit_path(wheel({f"{INFO}/entry_points.txt": text}, tag="py3-none-any")).ok
