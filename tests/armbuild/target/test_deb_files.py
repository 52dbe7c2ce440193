import io
import tarfile
from pathlib import PurePosixPath

import pytest

from armbuild.artifact import limits
from armbuild.errors import BuildError
from armbuild.target import deb_files


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("./lib/ld.so", "usr/lib/ld.so"),
        ("./usr/lib/x", "usr/lib/x"),
        ("/bin/sh", "usr/bin/sh"),
        ("./lib", "lib"),
        ("./etc/passwd", "etc/passwd"),
        ("./", "."),
    ],
)
def test_paths_are_those_of_a_merged_usr(name, path):
    assert str(deb_files.merged(name)) == path


@pytest.mark.parametrize(
    ("path", "target", "link"),
    [
        ("usr/lib/libm.so", "/lib/aarch64-linux-gnu/libm.so.6", "aarch64-linux-gnu/libm.so.6"),
        ("etc/alternatives/x", "/usr/bin/y", "../../usr/bin/y"),
        ("usr/lib/a.so", "a.so.1", "a.so.1"),
    ],
)
def test_absolute_links_stay_inside_the_root(path, target, link):
    assert deb_files.relative_link(PurePosixPath(path), target) == link


FIELDS = b"Package: x\nVersion: 1\nArchitecture: arm64\nMaintainer: x\nDescription: short\n long\n .\n"


def package(folder, members, fields=(FIELDS,)):
    """Write a .deb whose data archive holds ``members``: (name, content or link target, type)."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        for name, content, kind in members:
            info = tarfile.TarInfo(name)
            info.type = kind
            info.mode = 0o4755 if name.endswith("tool") else 0o644
            if kind == tarfile.REGTYPE:
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
            else:
                info.linkname = content
                tar.addfile(info)
    control = io.BytesIO()
    with tarfile.open(fileobj=control, mode="w") as tar:
        for text in fields:
            info = tarfile.TarInfo("control")
            info.size = len(text)
            tar.addfile(info, io.BytesIO(text))
    parts = {"debian-binary": b"2.0\n", "control.tar": control.getvalue(), "data.tar": data.getvalue()}
    path = folder / "x_1_arm64.deb"
    with path.open("wb") as sink:
        sink.write(b"!<arch>\n")
        for name, content in parts.items():
            sink.write(f"{name:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(content):<10}`\n".encode())
            sink.write(content + b"\n" * (len(content) % 2))
    return path


def test_a_package_is_unpacked_merged_relative_and_without_special_files(tmp_path):
    deb = package(
        tmp_path,
        [
            ("./", "", tarfile.DIRTYPE),
            ("./lib/ld.so", b"loader", tarfile.REGTYPE),
            ("./lib64", "/lib", tarfile.SYMTYPE),
            ("./usr/lib/libm.so", "/lib/libm.so.6", tarfile.SYMTYPE),
            ("./usr/bin/tool", b"#!", tarfile.REGTYPE),
            ("./usr/bin/same", "./usr/bin/tool", tarfile.LNKTYPE),
            ("./dev/null", "", tarfile.CHRTYPE),
        ],
    )
    root = tmp_path / "root"
    root.mkdir()
    deb_files.unpack([deb], root)
    assert (root / "lib").readlink().as_posix() == "usr/lib"
    assert (root / "usr/lib/ld.so").read_bytes() == b"loader"
    assert (root / "usr/lib/libm.so").readlink().as_posix() == "libm.so.6"
    assert (root / "usr/bin/tool").stat().st_mode & 0o7777 == 0o755
    assert (root / "usr/bin/same").samefile(root / "usr/bin/tool")
    assert not (root / "dev").exists()
    deb_files.unpack([deb], root)  # over itself, as two packages with one folder do


def test_only_the_files_asked_for_are_unpacked(tmp_path):
    deb = package(tmp_path, [("./usr/bin/a", b"a", tarfile.REGTYPE), ("./usr/bin/b", b"b", tarfile.REGTYPE)])
    (tmp_path / "root").mkdir()
    deb_files.unpack([deb], tmp_path / "root", only=frozenset({"usr/bin/b"}))
    assert [path.name for path in (tmp_path / "root/usr/bin").iterdir()] == ["b"]


def test_a_package_cannot_write_outside_its_root(tmp_path):
    deb = package(tmp_path, [("./usr/../../escaped", b"", tarfile.REGTYPE)])
    (tmp_path / "root").mkdir()
    with pytest.raises(BuildError, match="outside its root"):
        deb_files.unpack([deb], tmp_path / "root")
    assert not (tmp_path / "escaped").exists()


def test_a_package_cannot_write_through_a_link_it_brought(tmp_path):
    deb = package(
        tmp_path,
        [("./usr/out", "../../outside", tarfile.SYMTYPE), ("./usr/out/file", b"", tarfile.REGTYPE)],
    )
    (tmp_path / "root").mkdir()
    (tmp_path / "outside").mkdir()
    with pytest.raises(BuildError, match="outside its root"):
        deb_files.unpack([deb], tmp_path / "root")
    assert list((tmp_path / "outside").iterdir()) == []


def test_a_damaged_package_is_named(tmp_path):
    path = tmp_path / "x_1_arm64.deb"
    path.write_bytes(b"not a package")
    (tmp_path / "root").mkdir()
    with pytest.raises(BuildError, match="x_1_arm64"):
        deb_files.unpack([path], tmp_path / "root")


def test_control_fields_are_read_with_their_continuation_lines(tmp_path):
    found = deb_files.control(package(tmp_path, []))
    assert list(found) == ["Package", "Version", "Architecture", "Maintainer", "Description"]
    assert found["Description"] == "short\n long\n ."


def test_one_control_file_of_a_usual_size_is_read(tmp_path):
    """Thousands of them, or a million fields, would take gigabytes."""
    assert deb_files.control(package(tmp_path, [], [FIELDS, b"Package: other\n"]))["Package"] == "x"
    with pytest.raises(BuildError, match="its control file has 800000 bytes"):
        deb_files.control(package(tmp_path, [], [b"a: b\n" * 160_000]))
    with pytest.raises(BuildError, match="more than 1000 files"):
        deb_files.control(package(tmp_path, [], [FIELDS] * 1001))


def test_control_fields_in_another_encoding_are_named(tmp_path, capfd):
    """Their reader would guess, and warn on stderr."""
    with pytest.raises(BuildError, match=r"x_1_arm64\.deb is damaged: 'utf-8' codec"):
        deb_files.control(package(tmp_path, [], [FIELDS + b"Origin: \xff\n"]))
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("content", [b"not a package", b"!<arch>\n", b"!<arch>\n" + b"x" * 60])
def test_a_package_without_control_fields_is_named(tmp_path, content):
    path = tmp_path / "x_1_arm64.deb"
    path.write_bytes(content)
    with pytest.raises(BuildError, match=r"x_1_arm64\.deb is damaged"):
        deb_files.control(path)


@pytest.mark.parametrize(
    "members",
    [
        [("./usr/hard", "../../secret", tarfile.LNKTYPE)],
        [("./usr/hard", "./usr/../../secret", tarfile.LNKTYPE)],
        [("./usr/out", "../..", tarfile.SYMTYPE), ("./usr/hard", "./usr/out/secret", tarfile.LNKTYPE)],
        [("./usr/soft", "../../secret", tarfile.SYMTYPE), ("./usr/soft/file", b"", tarfile.REGTYPE)],
        [("./usr/missing", "./usr/none", tarfile.LNKTYPE)],
        [("./usr/file", b"", tarfile.REGTYPE), ("./usr/file/below", b"", tarfile.REGTYPE)],
        [(f"./usr/{'n' * 300}", b"", tarfile.REGTYPE)],
    ],
)
def test_a_package_that_leads_outside_or_makes_no_sense_is_refused(tmp_path, members):
    (tmp_path / "secret").write_text("mine")
    (root := tmp_path / "root").mkdir()
    with pytest.raises(BuildError, match=r"outside its root|is damaged"):
        deb_files.unpack([package(tmp_path, members)], root)
    assert (tmp_path / "secret").read_text() == "mine"
    assert (tmp_path / "secret").stat().st_nlink == 1


def test_a_hard_link_to_a_soft_one_is_that_link_and_not_what_it_leads_to(tmp_path):
    (tmp_path / "secret").write_text("mine")
    (root := tmp_path / "root").mkdir()
    links = [("./usr/soft", "../../secret", tarfile.SYMTYPE), ("./usr/hard", "./usr/soft", tarfile.LNKTYPE)]
    deb_files.unpack([package(tmp_path, links)], root)
    assert (root / "usr/hard").is_symlink()
    assert (tmp_path / "secret").stat().st_nlink == 1


def test_a_package_that_unpacks_to_too_much_is_refused(tmp_path, monkeypatch):
    path = package(tmp_path, [("./usr/a", bytes(1 << 16), tarfile.REGTYPE)])
    (tmp_path / "root").mkdir()
    monkeypatch.setattr(limits, "_RATIO_MATTERS_ABOVE", 0)
    monkeypatch.setattr(limits, "_MAX_RATIO", 0)
    with pytest.raises(BuildError, match="like a bomb"):
        deb_files.unpack([path], tmp_path / "root")
    with pytest.raises(BuildError, match="like a bomb"):
        deb_files.control(path)
