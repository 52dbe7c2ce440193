import hashlib
import http.server
import subprocess
import sys
import threading
from contextlib import contextmanager
from email.utils import formatdate

import pytest

from armbuild.errors import MissingError, UsageError
from armbuild.host import limits
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
def test_a_host_without_debian_sources_uses_debians_own_archive_and_the_keys_of_this_package(monkeypatch):
    monkeypatch.setattr(debian, "KEYRING", debian.OWN_KEYRING.with_name("absent.gpg"))
    assert debian.archive() == debian.Archive(uri="http://deb.debian.org/debian", signed_by=debian.OWN_KEYS)
    assert debian.archive("http://option.example/debian").signed_by == debian.OWN_KEYS
    monkeypatch.setenv("ARMBUILD_MIRROR", "http://env.example/debian")
    assert debian.archive().uri == "http://env.example/debian"
    assert debian.archive("http://option.example/debian").uri == "http://option.example/debian"


@pytest.mark.network
def test_a_machine_with_ubuntus_sources_reads_debians_archive(tmp_path, monkeypatch):
    """GitHub's runners have apt with Ubuntu's sources and keys: nothing of Debian's but what we bring."""
    address = debian.archive().uri  # this machine's, which may be the only one that it reaches
    (tmp_path / "ubuntu.sources").write_text(
        "Types: deb\nURIs: http://archive.ubuntu.com/ubuntu/\nSuites: noble noble-updates\n"
        "Components: main universe\nSigned-By: /usr/share/keyrings/ubuntu-archive-keyring.gpg\n"
    )
    monkeypatch.setattr(debian, "_source_files", lambda: [tmp_path / "ubuntu.sources"])
    monkeypatch.setattr(debian, "KEYRING", tmp_path / "debian-archive-keyring.gpg")
    monkeypatch.setattr(debian, "PUBLIC", address)
    monkeypatch.delenv("ARMBUILD_MIRROR", raising=False)
    monkeypatch.setenv("ARMBUILD_CACHE_DIR", str(tmp_path / "cache with a space"))
    assert debian.archive() == debian.Archive(uri=address, signed_by=debian.OWN_KEYS)
    for suite in ("bookworm-backports", "trixie", "forky"):  # where QEMU and the roots come from
        log = tmp_path / f"{suite}.log"
        assert debian.state(suite=suite, architecture="arm64", source=debian.archive(), log=log)
    (tmp_path / "no-keys.gpg").write_bytes(b"")
    stranger = debian.Archive(uri=address, signed_by=str(tmp_path / "no-keys.gpg"))
    with pytest.raises(MissingError):
        debian.state(suite="trixie", architecture="arm64", source=stranger, log=tmp_path / "log")


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


def test_security_updates_come_with_the_release_that_they_build_on(tmp_path, monkeypatch):
    path = tmp_path / "debian.sources"
    path.write_text(DEB822)
    monkeypatch.setattr(debian, "_source_files", lambda: [path])
    own = debian.Archive(uri="http://mirror.example/debian")
    debian._configure(tmp_path, "bookworm-security", "amd64", own)
    assert [line.split()[2:] for line in (tmp_path / "sources.list").read_text().splitlines()] == [
        ["http://mirror.example/debian", "bookworm", "main"],
        ["http://mirror.example/debian-security", "bookworm-security", "main"],
    ]
    debian._configure(tmp_path, "bookworm", "amd64", own)
    assert "security" not in (tmp_path / "sources.list").read_text()


def test_where_no_address_of_security_updates_is_stated_it_is_beside_the_archives(tmp_path, monkeypatch):
    path = tmp_path / "debian.sources"
    path.write_text(DEB822.replace("bookworm-security", "sid"))
    monkeypatch.setattr(debian, "_source_files", lambda: [path])
    stated, other = (debian.Archive(uri=f"http://{name}.example/debian") for name in ("mirror", "other"))
    assert debian.security_address(stated) == "http://deb.debian.org/debian-security"
    assert debian.security_address(other) == "http://other.example/debian-security"


def test_a_host_without_apt_learns_what_to_install(monkeypatch):
    monkeypatch.setattr(debian.shutil, "which", lambda _name: None)
    with pytest.raises(MissingError, match="apt-get is not there"):
        debian.archive()


def test_sources_cannot_be_read_without_the_extra_and_the_way_out_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "debian.deb822", None)
    with pytest.raises(MissingError, match=r"debian\S* is not installed: pip install 'armllm\[build\]'"):
        debian.parse_sources(DEB822, ".sources")


@contextmanager
def served(files, *, without_end=()):
    """Serve files by the end of their address; an answer ``without_end`` goes on with zeros."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            name = self.path.rpartition("/")[2]
            endless = name in without_end
            self.send_response(200 if name in files or endless else 404)
            if not endless:
                self.send_header("Content-Length", str(len(files.get(name, b""))))
            self.end_headers()
            try:
                self.wfile.write(files.get(name, b""))
                while endless:
                    self.wfile.write(bytes(1 << 20))
            except OSError:
                self.close_connection = True

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/debian"
        server.shutdown()


def archive_of(package):
    """An archive without a signature that lists one package: its files by name."""
    digest = hashlib.sha256(package).hexdigest()
    packages = (
        "Package: thing\nVersion: 1\nArchitecture: arm64\nFilename: pool/thing_1_arm64.deb\n"
        f"Size: {len(package)}\nSHA256: {digest}\n\n"
    ).encode()
    release = (
        f"Suite: bookworm\nCodename: bookworm\nDate: {formatdate(usegmt=True)}\nArchitectures: arm64\n"
        f"Components: main\nSHA256:\n {hashlib.sha256(packages).hexdigest()} {len(packages)}"
        " main/binary-arm64/Packages\n"
    ).encode()
    return {"Release": release, "Packages": packages, "thing_1_arm64.deb": package}


@pytest.mark.parametrize(
    ("most", "without_end", "reason"),
    [
        ({}, ["InRelease", "Release"], "failed: "),
        ({"file_bytes": 1 << 20}, [], "ended, because it wrote a file of more than 1048576 bytes"),
        ({"written_bytes": 1 << 20}, [], "ended, because it wrote more than 1048576 bytes"),
    ],
    ids=["index", "one file", "all files"],
)
def test_an_archive_of_too_much_is_left(tmp_path, monkeypatch, most, without_end, reason):
    """apt itself limits the index; a package may be as large as a signed index says."""
    monkeypatch.setenv("ARMBUILD_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(limits, "LOOK_EVERY", 0.02)
    monkeypatch.setattr(limits, "DOWNLOAD", limits.Limits(seconds=60, **most))
    (into := tmp_path / "debs").mkdir()
    with (
        served(archive_of(bytes(20 << 20)), without_end=without_end) as address,
        pytest.raises(MissingError, match=reason),
    ):
        debian.download(
            ("thing",), suite="bookworm", architecture="arm64", into=into, dependencies=False,
            source=debian.Archive(uri=address, trusted=True), log=tmp_path / "log",
        )  # fmt: skip
    assert list(into.iterdir()) == []
    assert (tmp_path / "log").read_text(errors="replace").count(" download thing\n") == bool(most), "once"
    assert sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()) < 25 << 20


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
