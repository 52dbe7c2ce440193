"""What an image may stand on: layouts of several distributions, each taken as it is or refused in a line."""

import struct

import pytest
from tests.armbuild.image import small

from armbuild.artifact import archives
from armbuild.errors import CheckFailed, MissingError, UsageError
from armbuild.image import archive, base, root


def glibc(version):
    return f"GNU C Library (GNU libc) stable release version {version}.\n"


def elf(machine):
    """Return an ELF file of headers only (System V ABI, chapter 4); 183 is AArch64, 62 is x86-64."""
    kind = b"\x7fELF\x02\x01\x01" + bytes(9)
    return kind + struct.pack("<HHIQQQIHHHHHH", 2, machine, 1, 0, 0, 0, 0, 64, 56, 0, 64, 0, 0)


DEBIAN = {
    "bin": ("->", "usr/bin"),
    "lib": ("->", "usr/lib"),
    "usr/bin/python3.11": elf(183),
    "usr/lib/python3.11/asyncio/__init__.py": "",
    "usr/lib/python3/dist-packages/README": "",
    "etc/os-release": "ID=debian\nVERSION_CODENAME=trixie\n",
    "usr/lib/aarch64-linux-gnu/libc.so.6": glibc("2.41"),
}
UNMERGED = {
    **{name: content for name, content in DEBIAN.items() if name not in ("lib", "bin")},
    "usr/lib/aarch64-linux-gnu/libc.so.6": None,
    "lib/aarch64-linux-gnu/libc.so.6": glibc("2.31"),
    "etc/os-release": "ID=debian\nVERSION_CODENAME=bullseye\n",
}
UBUNTU = {
    **DEBIAN,
    "etc/os-release": "ID=ubuntu\nVERSION_CODENAME=noble\n",
    "usr/lib/aarch64-linux-gnu/libc.so.6": glibc("2.39"),
}
DISTROLESS = {
    "etc/debian_version": "13.1\n",
    "etc/os-release": "ID=debian\nVERSION_CODENAME=trixie\n",
    "usr/bin/python3.11": elf(183),
    "usr/lib/python3.11/asyncio/__init__.py": "",
    "lib/aarch64-linux-gnu/libc.so.6": glibc("2.41"),
    "var/lib/dpkg/status.d/libc6": "Package: libc6\nVersion: 2.41-12\n\n",
}
FEDORA = {
    "lib64": ("->", "usr/lib64"),
    "etc/os-release": 'ID=fedora\nVERSION_CODENAME=""\n',
    "usr/bin/python3.11": elf(183),
    "usr/lib64/python3.11/asyncio/__init__.py": "",
    "usr/lib64/python3.11/site-packages/README": "",
    "usr/lib64/libc.so.6": glibc("2.39"),
    "usr/lib64/libstdc++.so.6": "",
}
OFFICIAL = {  # as the images python:3.11 of Docker's library
    **DEBIAN,
    "usr/bin/python3.11": None,
    "usr/bin/python3.13": elf(183),
    "usr/local/bin/python3.11": elf(183),
    "usr/local/lib/python3.11/asyncio/__init__.py": "",
    "usr/local/lib/python3.11/site-packages/README": "",
}
MOVED = {  # an interpreter elsewhere, which an absolute link leads to
    **{name: content for name, content in FEDORA.items() if "python" not in name},
    "usr/local/bin/python3.11": ("->", "/opt/python/bin/python3.11"),
    "opt/python/bin/python3.11": elf(183),
    "opt/python/lib/python3.11/asyncio/__init__.py": "",
    "opt/python/lib/python3.11/site-packages/README": "",
}
ENVIRONMENT = {
    **DEBIAN,
    "app/pyvenv.cfg": "home = /usr/bin\n",
    "app/bin/python3.11": ("->", "/usr/bin/python3.11"),
    "app/lib/python3.11/site-packages/README": "",
}


def read(tmp_path, files, **config):
    there = {name: content for name, content in files.items() if content is not None}
    archive = small.write(tmp_path, there, path="base.tar", **config)
    work = tmp_path / "work"
    work.mkdir()
    try:
        return base.read(archive, "arm64", "3.11", name="base.tar", work=work)
    finally:
        assert not [path for path in work.iterdir() if path.is_dir()], "the unpacked image stays behind"


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ARMBUILD_CACHE_DIR", str(tmp_path / "cache"))


@pytest.mark.parametrize(
    ("files", "python", "site", "suite"),
    [
        (DEBIAN, "/usr/bin/python3.11", "usr/local/lib/python3.11/dist-packages", "trixie"),
        (UNMERGED, "/usr/bin/python3.11", "usr/local/lib/python3.11/dist-packages", "bullseye"),
        (UBUNTU, "/usr/bin/python3.11", "usr/local/lib/python3.11/dist-packages", "bookworm"),
        (DISTROLESS, "/usr/bin/python3.11", "usr/local/lib/python3.11/dist-packages", "trixie"),
        (FEDORA, "/usr/bin/python3.11", "usr/lib64/python3.11/site-packages", "bookworm"),
        (OFFICIAL, "/usr/local/bin/python3.11", "usr/local/lib/python3.11/site-packages", "trixie"),
        (MOVED, "/usr/local/bin/python3.11", "opt/python/lib/python3.11/site-packages", "bookworm"),
    ],
    ids=["debian", "unmerged", "ubuntu", "distroless", "fedora", "official", "moved"],
)
def test_a_base_is_read_as_its_distribution_lays_it_out(tmp_path, files, python, site, suite):
    found = read(tmp_path, files)
    assert (found.python, found.site) == (python, site)
    assert found.suite == suite, "packages of a newer glibc than the base's would not start"
    assert found.lacking[:2] == ("tini", "libtcmalloc-minimal4")
    assert ("libstdc++6" in found.lacking) == ("usr/lib64/libstdc++.so.6" not in files)


def test_a_base_of_zstd_layers_keeps_them_as_they_are(tmp_path):
    stack = [small.with_zstd(small.layer(tmp_path, DEBIAN)), small.layer(tmp_path, {"own": "1"}, name="own")]
    path = archive.write([small.image(stack)], tmp_path / "base.tar", name="localhost/base:1").path
    found = base.read(path, "arm64", "3.11", name="base.tar", work=tmp_path)
    assert [layer.descriptor() for layer in found.layers] == [layer.descriptor() for layer in stack]


def test_an_environment_that_the_base_puts_first_is_the_one_served_from(tmp_path):
    found = read(tmp_path, ENVIRONMENT, Env=["PATH=/app/bin:/usr/bin"])
    assert (found.python, found.site) == ("/app/bin/python3.11", "app/lib/python3.11/site-packages")


def test_the_bill_begins_with_the_packages_of_the_base(tmp_path):
    ubuntu = {
        **UBUNTU,
        "var/lib/dpkg/status": "Package: libc6\nStatus: install ok installed\nVersion: 2.39-0ubuntu8\n"
        "Architecture: arm64\n\nPackage: gone\nStatus: deinstall ok config-files\nVersion: 1\n",
        "usr/lib/python3/dist-packages/theirs-1.dist-info/METADATA": "Name: theirs\nVersion: 1\n",
    }
    addresses = {
        name: [component["purl"] for component in read(tmp_path / name, files).content.components]
        for name, files in (("ubuntu", ubuntu), ("distroless", DISTROLESS))
    }
    assert addresses == {
        "ubuntu": [
            "pkg:deb/ubuntu/libc6@2.39-0ubuntu8?arch=arm64&distro=noble",
            "pkg:pypi/theirs@1",
        ],
        "distroless": ["pkg:deb/debian/libc6@2.41-12?arch=arm64&distro=trixie"],
    }


def test_links_of_a_base_do_not_lead_to_files_of_this_machine(tmp_path):
    """Its bill would name what this machine has, and the build wait for a file that never ends."""
    own = small.tree(
        tmp_path / "own",
        {
            "status": "Package: mine\nStatus: install ok installed\nVersion: 1\n\n",
            "status.d/libmine": "Package: libmine\nVersion: 1\n\n",
            "mine-1.dist-info/METADATA": "Name: mine\nVersion: 1\n",
            "mine-1.dist-info/RECORD": "a" * 200_000,  # more than a field of csv may have
        },
    )
    packages = "usr/lib/python3/dist-packages"
    links = {
        "var/lib/dpkg/status": ("->", str(own / "status")),
        "var/lib/dpkg/status.d": ("->", str(own / "status.d")),
        f"{packages}/mine-1.dist-info": ("->", str(own / "mine-1.dist-info")),
        f"{packages}/theirs-1.dist-info/METADATA": "Name: theirs\nVersion: 1\n",
        f"{packages}/within-1.dist-info/RECORD": ("->", str(own / "mine-1.dist-info/RECORD")),
    }
    for number, listed in enumerate(("status", "status.d")):
        files = {name: item for name, item in links.items() if listed == "status" or name[-6:] != "status"}
        found = read(tmp_path / str(number), {**DEBIAN, **files})
        assert [item["purl"] for item in found.content.components] == ["pkg:pypi/theirs@1"]
    tree = small.tree(tmp_path / "tree", links)
    (layer,) = base._hide(tree, packages, {"mine", "within", "theirs"}, tmp_path)
    assert layer.comment == "base: without its own mine, theirs, within"
    assert not list((tree / packages).iterdir())
    assert len(list((own / "mine-1.dist-info").iterdir())) == 2


@pytest.mark.parametrize("name", ["etc/os-release", "var/lib/dpkg/status", "var/lib/dpkg/status.d/x"])
def test_what_a_base_says_of_itself_is_read_up_to_a_limit(tmp_path, monkeypatch, name):
    """A file of spaces of any size takes no space in an archive."""
    monkeypatch.setattr(base, "_STATUS_LIMIT", archives.TEXT_LIMIT)
    place = name.rpartition("/")[2]
    with pytest.raises(CheckFailed, match=rf"^{place}: refused: it has more than 4 MiB"):
        read(tmp_path, {**DEBIAN, name: " " * (archives.TEXT_LIMIT + 1)})


def test_the_record_of_a_base_s_package_is_read_up_to_a_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(base, "_RECORD_LIMIT", 1 << 20)
    tree = small.tree(tmp_path / "tree", {"site/a-1.dist-info/RECORD": " " * ((1 << 20) + 1)})
    with pytest.raises(CheckFailed, match=r"^RECORD: refused: it has more than 1 MiB"):
        base._hide(tree, "site", {"a"}, tmp_path)


@pytest.mark.parametrize("name", ["a\0b", "n" * 300])
def test_names_that_no_file_can_have_are_refused_in_a_line(tmp_path, name):
    """A base names its packages and their files as it likes."""
    with pytest.raises(CheckFailed, match=r"no file can have such a name|too long for this system"):
        read(
            tmp_path,
            {**DEBIAN, "usr/share/doc/x": "", "var/lib/dpkg/status": f"Package: {name}\nVersion: 1\n\n"},
        )
    tree = small.tree(tmp_path / "tree", {"site/a-1.dist-info/RECORD": f"{name},,\n"})
    with pytest.raises(CheckFailed, match=r"no file can have such a name|too long for this system"):
        base._hide(tree, "site", {"a"}, tmp_path)


def test_a_base_is_called_by_its_reference_and_not_by_where_it_lies(tmp_path):
    stack = [small.layer(tmp_path, DEBIAN)]
    names = []
    for name in ("team/base:1", "latest"):  # an OCI layout's tag alone says nothing
        path = archive.write([small.image(stack)], tmp_path / "base.tar", name=name).path
        names.append(base.read(path, "arm64", "3.11", name=str(path), work=tmp_path).name)
    assert names == ["team/base:1", "base.tar"]


def test_a_variable_without_a_value_is_dropped(tmp_path):
    assert read(tmp_path, DEBIAN, Env=["OWN=a=b", "BARE"]).environment == {"OWN": "a=b"}


@pytest.mark.parametrize(
    ("files", "config", "reason"),
    [
        (DEBIAN, {"architecture": "amd64"}, r"holds linux/amd64, not linux/arm64"),
        ({**DEBIAN, "usr/bin/python3.11": elf(62)}, {}, r"says linux/arm64, but its Python is for x86_64"),
        ({**DEBIAN, "usr/bin/python3.11": None}, {}, r"no Python 3\.11, .*it has none"),
        (
            {**DEBIAN, "usr/bin/python3.11": None, "usr/bin/python3.12": ""},
            {},
            r"no Python 3\.11.*it has python3\.12",
        ),
        ({**DEBIAN, "usr/lib/python3.11/asyncio/__init__.py": None}, {}, r"lacks the standard library"),
        (
            {"bin/busybox": "", "usr/bin/python3.11": "", "lib/ld-musl-aarch64.so.1": ""},
            {},
            r"is musl: torch needs the GNU one",
        ),
        (
            {"lib/ld-musl-aarch64.so.1": "", "lib/ld-linux-aarch64.so.1": ("->", "libgcompat.so.0")},
            {},
            r"is musl",
        ),
        ({"app": ""}, {}, r"it has no C library"),
        ({**FEDORA, "usr/lib64/libc.so.6": glibc("2.17")}, {}, r"glibc is 2\.17: torch needs 2\.28"),
        ({**FEDORA, "usr/lib64/libc.so.6": glibc("2.28")}, {}, r"2\.28 is older than 2\.31.* of tini"),
        ({**FEDORA, "usr/lib64/libstdc++.so.6": None}, {}, r"no libstdc\+\+\.so\.6"),
    ],
    ids=["label", "machine", "none", "another", "minimal", "musl", "gcompat", "empty", "old", "older", "c++"],
)
def test_a_base_that_cannot_carry_the_engine_is_refused_in_a_line(tmp_path, files, config, reason):
    with pytest.raises(UsageError, match=reason) as caught:
        read(tmp_path, files, **config)
    assert "\n" not in str(caught.value)


def test_a_base_that_is_not_there_is_named(tmp_path):
    with pytest.raises(UsageError, match="no such file"):
        base.fetch("./gone.tar", "arm64", tmp_path, tmp_path / "log")


@pytest.mark.parametrize(
    ("suite", "name"), [("bookworm", "libtcmalloc-minimal4"), ("trixie", "libtcmalloc-minimal4t64")]
)
def test_the_allocator_is_asked_for_by_its_name_in_that_release(tmp_path, monkeypatch, suite, name):
    asked = []

    def download(names, **_):
        asked.extend(names)
        raise MissingError("enough")

    monkeypatch.setattr(root.debian, "download", download)
    with pytest.raises(MissingError, match="enough"):
        root.make(
            tmp_path, python=None, suite=suite, architecture="arm64", source=None,
            only=("tini", "libtcmalloc-minimal4"), log=tmp_path / "log",
        )  # fmt: skip
    assert asked == ["tini", name], "`apt-get download` takes no name that a package merely provides"
