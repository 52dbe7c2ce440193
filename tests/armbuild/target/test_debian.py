import io
import subprocess
import sys
import tarfile
from pathlib import PurePosixPath

import pytest

from armbuild.errors import BuildError, MissingError, UsageError
from armbuild.target import debian

DEB822 = """\
# comment
Types: deb
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates
# another
Components: main contrib
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://mirror.example/debian-security
Suites: bookworm-security
Components: main

Types: deb-src
URIs: http://source.example/debian
Suites: bookworm
Components: main

Enabled: no
Types: deb
URIs: http://disabled.example/debian
Suites: trixie
Components: main

Types: deb
URIs: https://vendor.example/apt
Suites: nodistro
Components: main
"""
EMBEDDED = """\
Types: deb deb-src
URIs: http://a.example/debian/ http://b.example/debian/
Suites: trixie
Components: main
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 mDMEZk
 -----END PGP PUBLIC KEY BLOCK-----
"""
ONE_LINE = """\
# deb http://old.example/debian bookworm main
deb cdrom:[Debian]/ bookworm main
deb-src http://source.example/debian bookworm main
deb [arch=amd64 signed-by=/k.gpg trusted=yes] http://one.example/debian bookworm main contrib # note
deb http://ubuntu.example/ubuntu noble main
deb http://contrib.example/debian bookworm contrib
"""


def test_the_archive_is_read_from_deb822_sources():
    found = debian.parse_sources(DEB822, ".sources")
    assert found == [
        debian.Archive(
            uri="http://mirror.example/debian", signed_by="/usr/share/keyrings/debian-archive-keyring.gpg"
        )
    ]


def test_a_key_inside_deb822_sources_is_kept_whole():
    first, second = debian.parse_sources(EMBEDDED, ".sources")
    assert (first.uri, second.uri) == ("http://a.example/debian/", "http://b.example/debian/")
    assert first.signed_by.startswith("-----BEGIN") or "\n -----BEGIN" in first.signed_by
    assert "mDMEZk" in first.signed_by


def test_the_archive_is_read_from_one_line_sources():
    found = debian.parse_sources(ONE_LINE, ".list")
    assert found == [debian.Archive(uri="http://one.example/debian", signed_by="/k.gpg", trusted=True)]


@pytest.fixture
def no_sources(monkeypatch):
    monkeypatch.setattr(debian, "_source_files", list)
    monkeypatch.delenv("ARMBUILD_MIRROR", raising=False)


@pytest.mark.usefixtures("no_sources")
def test_a_host_without_debian_sources_is_told_to_name_a_mirror(monkeypatch):
    with pytest.raises(MissingError, match="--mirror"):
        debian.archive()
    monkeypatch.setenv("ARMBUILD_MIRROR", "http://env.example/debian")
    assert debian.archive().uri == "http://env.example/debian"
    assert debian.archive("http://option.example/debian").uri == "http://option.example/debian"


@pytest.mark.usefixtures("no_sources")
@pytest.mark.parametrize("mirror", ["deb.example", "http:///", "ftp stuff", "http://a b"])
def test_a_mirror_that_is_no_address_is_refused(mirror):
    with pytest.raises(UsageError, match="--mirror"):
        debian.archive(mirror)


def test_a_mirror_that_the_host_knows_keeps_the_hosts_key(tmp_path, monkeypatch):
    path = tmp_path / "debian.sources"
    path.write_text(DEB822)
    monkeypatch.setattr(debian, "_source_files", lambda: [path])
    assert debian.archive("http://mirror.example/debian/").signed_by.endswith("debian-archive-keyring.gpg")


def test_what_is_cached_goes_by_its_archive_and_needs_no_apt(tmp_path, monkeypatch):
    monkeypatch.setenv("ARMBUILD_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("ARMBUILD_MIRROR", raising=False)
    monkeypatch.setattr(debian.shutil, "which", lambda _name: None)
    path = tmp_path / "debian.sources"
    path.write_text(DEB822)
    monkeypatch.setattr(debian, "_source_files", lambda: [path])

    def folder(mirror=None):
        return debian.cache_folder("roots", "x", mirror)

    own, other = folder(), folder("http://other.example/debian")
    assert own.parent == tmp_path / "cache/roots"
    assert own == folder("http://mirror.example/debian/") != other
    monkeypatch.setenv("ARMBUILD_MIRROR", "http://other.example/debian")
    assert folder() == other
    monkeypatch.delenv("ARMBUILD_MIRROR")
    path.write_text(
        DEB822.replace("Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg", "Trusted: yes")
    )
    assert folder() not in (own, other), "what nobody signed is not taken for what was checked"


def test_a_host_without_apt_is_told_what_to_install(monkeypatch):
    monkeypatch.setattr(debian.shutil, "which", lambda _name: None)
    with pytest.raises(MissingError, match="apt-get is not there"):
        debian.archive()


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
    assert str(debian.merged(name)) == path


@pytest.mark.parametrize(
    ("path", "target", "link"),
    [
        ("usr/lib/libm.so", "/lib/aarch64-linux-gnu/libm.so.6", "aarch64-linux-gnu/libm.so.6"),
        ("etc/alternatives/x", "/usr/bin/y", "../../usr/bin/y"),
        ("usr/lib/a.so", "a.so.1", "a.so.1"),
    ],
)
def test_absolute_links_stay_inside_the_root(path, target, link):
    assert debian.relative_link(PurePosixPath(path), target) == link


def package(folder, members):
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
        text = b"Package: x\nVersion: 1\nArchitecture: arm64\nMaintainer: x\nDescription: short\n long\n .\n"
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
    debian.unpack([deb], root)
    assert (root / "lib").readlink().as_posix() == "usr/lib"
    assert (root / "usr/lib/ld.so").read_bytes() == b"loader"
    assert (root / "usr/lib/libm.so").readlink().as_posix() == "libm.so.6"
    assert (root / "usr/bin/tool").stat().st_mode & 0o7777 == 0o755
    assert (root / "usr/bin/same").samefile(root / "usr/bin/tool")
    assert not (root / "dev").exists()
    debian.unpack([deb], root)  # over itself, as two packages with one folder do


def test_only_the_files_asked_for_are_unpacked(tmp_path):
    deb = package(tmp_path, [("./usr/bin/a", b"a", tarfile.REGTYPE), ("./usr/bin/b", b"b", tarfile.REGTYPE)])
    (tmp_path / "root").mkdir()
    debian.unpack([deb], tmp_path / "root", only=frozenset({"usr/bin/b"}))
    assert [path.name for path in (tmp_path / "root/usr/bin").iterdir()] == ["b"]


def test_a_package_cannot_write_outside_its_root(tmp_path):
    deb = package(tmp_path, [("./usr/../../escaped", b"", tarfile.REGTYPE)])
    (tmp_path / "root").mkdir()
    with pytest.raises(BuildError, match="outside its root"):
        debian.unpack([deb], tmp_path / "root")
    assert not (tmp_path / "escaped").exists()


def test_a_package_cannot_write_through_a_link_it_brought(tmp_path):
    deb = package(
        tmp_path,
        [("./usr/out", "../../outside", tarfile.SYMTYPE), ("./usr/out/file", b"", tarfile.REGTYPE)],
    )
    (tmp_path / "root").mkdir()
    (tmp_path / "outside").mkdir()
    with pytest.raises(BuildError, match="outside its root"):
        debian.unpack([deb], tmp_path / "root")
    assert list((tmp_path / "outside").iterdir()) == []


def test_a_damaged_package_is_named(tmp_path):
    path = tmp_path / "x_1_arm64.deb"
    path.write_bytes(b"not a package")
    (tmp_path / "root").mkdir()
    with pytest.raises(BuildError, match="x_1_arm64"):
        debian.unpack([path], tmp_path / "root")


def test_control_fields_are_read_with_their_continuation_lines(tmp_path):
    found = debian.control(package(tmp_path, []))
    assert list(found) == ["Package", "Version", "Architecture", "Maintainer", "Description"]
    assert found["Description"] == "short\n long\n ."


@pytest.mark.parametrize("content", [b"not a package", b"!<arch>\n", b"!<arch>\n" + b"x" * 60])
def test_a_package_without_control_fields_is_named(tmp_path, content):
    path = tmp_path / "x_1_arm64.deb"
    path.write_bytes(content)
    with pytest.raises(BuildError, match=r"x_1_arm64\.deb is damaged"):
        debian.control(path)


def test_sources_cannot_be_read_without_the_extra_and_the_way_out_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "debian.deb822", None)
    with pytest.raises(MissingError, match=r"debian\S* is not installed: pip install 'armllm\[build\]'"):
        debian.parse_sources(DEB822, ".sources")


@pytest.mark.network
@pytest.mark.slow
def test_a_package_of_another_architecture_and_release_comes_without_root_rights(tmp_path, monkeypatch):
    monkeypatch.setenv("ARMBUILD_CACHE_DIR", str(tmp_path / "cache"))
    into = tmp_path / "debs"
    into.mkdir()
    before = subprocess.run(["dpkg", "--print-foreign-architectures"], capture_output=True, check=True).stdout
    for suite in ("bookworm", "trixie"):
        files = debian.download(
            ("zlib1g",),
            suite=suite,
            architecture="arm64",
            source=debian.archive(),
            into=into,
            dependencies=True,
            log=tmp_path / "log",
        )
        assert any(file.name.startswith("zlib1g_") for file in files)
        assert any(file.name.startswith("libc6_") for file in files)
    assert (
        subprocess.run(["dpkg", "--print-foreign-architectures"], capture_output=True, check=True).stdout
        == before
    )
    with pytest.raises(MissingError, match="no-such-package"):
        debian.download(
            ("no-such-package",),
            suite="bookworm",
            architecture="arm64",
            source=debian.archive(),
            into=into,
            dependencies=False,
            log=tmp_path / "log",
        )


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
def test_a_package_that_leads_outside_or_makes_no_sense_is_told(tmp_path, members):
    (tmp_path / "secret").write_text("mine")
    (root := tmp_path / "root").mkdir()
    with pytest.raises(BuildError, match=r"outside its root|is damaged"):
        debian.unpack([package(tmp_path, members)], root)
    assert (tmp_path / "secret").read_text() == "mine"
    assert (tmp_path / "secret").stat().st_nlink == 1


def test_a_hard_link_to_a_soft_one_is_that_link_and_not_what_it_leads_to(tmp_path):
    (tmp_path / "secret").write_text("mine")
    (root := tmp_path / "root").mkdir()
    links = [("./usr/soft", "../../secret", tarfile.SYMTYPE), ("./usr/hard", "./usr/soft", tarfile.LNKTYPE)]
    debian.unpack([package(tmp_path, links)], root)
    assert (root / "usr/hard").is_symlink()
    assert (tmp_path / "secret").stat().st_nlink == 1
