# ruff: noqa: S311 - seeded, so that a failure comes back
"""Random damage in files of strangers: each parser refuses or reports it, within its time and memory.

``ARMBUILD_MUTATIONS`` is the number of files in all; ``ARMBUILD_SEED`` makes others. The time is the CPU's,
of this process and of those that it waited for. ``pytest -s`` prints the slowest file of each parser, and
what it added to the memory.
"""

import dataclasses
import gzip
import io
import json
import os
import random
import resource
import signal
import tarfile
import zipfile

import pytest
from tests.armbuild import damaged_documents, damaged_sets, wheels
from tests.armbuild.audit.conftest import make_elf
from tests.armbuild.damage import changed, damaged, with_checksums, written
from tests.armbuild.image import small
from tests.armbuild.target.test_deb_files import package

import armisa.cpuinfo
from armbuild import audit, index, verify
from armbuild.artifact import symbols, wheelfile
from armbuild.errors import ArmbuildError
from armbuild.host import cache
from armbuild.image import claims, reader, unpack
from armbuild.target import deb_files
from armbuild.wheel import fetch, project, provenance
from armisa.errors import IsaError

COUNT = int(os.environ.get("ARMBUILD_MUTATIONS", "300"))
SEED = os.environ.get("ARMBUILD_SEED", "")
SECONDS, MEMORY = 10, 1 << 30
HANGS = 10 * SECONDS
"""Seconds by the clock, after which a reader waits for something that never comes."""
REFUSALS = (ArmbuildError, IsaError)
WHEEL = "thing-1.0-cp311-cp311-manylinux_2_28_aarch64.whl"
LAYERS = ({"etc/x": "1", "usr/lib/a": "2"}, {"etc/.wh.x": "", "b": ("->", "/usr/lib")})
CONFIG = {
    "User": "1:1", "Env": ["A=b"], "Entrypoint": ["/bin/x"],
    "Labels": {"org.opencontainers.image.title": "x"}, "Healthcheck": {"Test": ["CMD", "/bin/x"]},
}  # fmt: skip
DOCUMENTS = (
    {
        "bomFormat": "CycloneDX", "specVersion": "1.6",
        "metadata": {
            "component": {"name": "thing", "version": "1.0"},
            "tools": {"components": [{"name": "gcc 12"}]},
        },
        "components": [{"purl": "pkg:pypi/a@1", "name": "a", "version": "1"}],
    },
    {
        "_type": provenance.STATEMENT, "predicateType": provenance.PREDICATE,
        "subject": [{"name": "thing-1.0-py3-none-any.whl", "digest": {"sha256": ""}}],
        "predicate": {"buildDefinition": {
            "externalParameters": {"project": "thing"},
            "resolvedDependencies": [
                {"uri": "git+x", "digest": {"gitCommit": "a" * 40}, "annotations": {"kind": "x"}},
                {"name": "compiler", "annotations": {"version": "gcc 12"}},
                {"uri": "pkg:pypi/a@1", "name": "a"},
            ],
        }},
    },
)  # fmt: skip
PROJECT = b"""\
[build-system]
requires = ["setuptools>=68", "torch"]
build-backend = "setuptools.build_meta"
backend-path = ["."]
[project]
name = "thing"
version = "1.0"
dependencies = ["numpy>=1; python_version < '4'"]
[tool.armbuild]
test-requires = ["pytest"]
kernels = {thing = true}
"""
CPUINFO = (
    "processor\t: 0\nBogoMIPS\t: 243.75\nFeatures\t: fp asimd atomics asimddp sve\nCPU implementer\t: 0x41\n"
    "CPU architecture: 8\nCPU variant\t: 0x1\nCPU part\t: 0xd40\nCPU revision\t: 1\n\n"
)


def read_wheel(path):
    report = audit.audit_path(path)
    json.dumps(report.as_dict())
    wheelfile.read(path)
    symbols.unresolved(path)
    symbols.libraries(path)


def wheel_file(random, folder):
    """Every byte of a wheel; it is of Python alone, since its ELF files go the way of ``wheel_member``."""
    name = "thing-1.0-py3-none-any.whl"
    content = wheels.write(
        folder, name, {"thing/_core.cpython-311-aarch64-linux-gnu.so": None, "thing/a.py": b"x"}
    )
    read_wheel(written(folder / name, damaged(random, content.read_bytes())))


def wheel_member(random, folder):
    path = wheels.write(folder, WHEEL, {"thing/_core.cpython-311-aarch64-linux-gnu.so": make_elf()})
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    of_python = random.random() < 0.9  # auditwheel is asked of ELF files, in a process of its own
    which = random.choice([name for name in members if name.endswith((".so",)) != of_python])
    members[which] = damaged(random, members[which])
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            if not (of_python and name.endswith(".so")):
                archive.writestr(name, content)
    read_wheel(path)


def elf_file(random, folder):
    content = make_elf([("f", ".text", [0xD65F03C0, 0x4E829420]), ("g", "other", [0xD65F03C0])], debug=True)
    audit.audit_path(written(folder / "x.so", damaged(random, content)))


def sdist_tar(random, folder):
    data = io.BytesIO()
    with tarfile.open(
        fileobj=data, mode="w", format=random.choice((tarfile.PAX_FORMAT, tarfile.GNU_FORMAT))
    ) as tar:
        for name, kind, target in (
            ("x-1/setup.py", tarfile.REGTYPE, ""),
            ("x-1/" + "n" * 120, tarfile.REGTYPE, ""),
            ("x-1/link", tarfile.SYMTYPE, "setup.py"),
            ("x-1/hard", tarfile.LNKTYPE, "x-1/setup.py"),
        ):
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname, entry.mtime = kind, target, 1600000000.5
            entry.size = 3 if kind == tarfile.REGTYPE else 0
            tar.addfile(entry, io.BytesIO(b"abc"))
    content = data.getvalue()
    if random.random() < 0.8:  # checksums that hold, so that what they guard is read
        content = with_checksums(damaged(random, content))
        packed = gzip.compress(content)
    else:
        packed = damaged(random, gzip.compress(content))
    (out := folder / "out").mkdir()
    fetch._unpack(written(folder / "x-1.tar.gz", packed), out)


def sdist_zip(random, folder):
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x-1/setup.py", b"abc")
        archive.writestr("x-1/a/b", bytes(1000))
    (out := folder / "out").mkdir()
    fetch._unpack(written(folder / "x-1.zip", damaged(random, data.getvalue())), out)


def deb(random, folder):
    members = [
        ("./usr/a", b"a", tarfile.REGTYPE),
        ("./usr/b", "a", tarfile.SYMTYPE),
        ("./c", "./usr/a", tarfile.LNKTYPE),
    ]
    content = damaged(random, package(folder, members).read_bytes())
    path = written(folder / "x.deb", with_checksums(content) if random.random() < 0.5 else content)
    (root := folder / "root").mkdir()
    deb_files.unpack([path], root)
    deb_files.control(path)


def read_image(path, folder):
    report = audit.audit_path(path, keep=claims.keep)
    json.dumps(report.as_dict())
    claims.read(report)
    (root := folder / "root").mkdir()
    with reader.open_image(path) as image:
        for manifest in image.manifests():
            unpack.into_folder(image, manifest, root)
            break


def oci_archive(random, folder):
    path = small.write(folder, *LAYERS, **CONFIG)
    read_image(written(path, damaged(random, path.read_bytes())), folder)


def oci_configuration(random, folder):
    made = [small.layer(folder, files, name=f"layer{number}") for number, files in enumerate(LAYERS)]
    image = small.image(made, **CONFIG)
    document = {**image.config, "config": changed(random, image.config["config"])}
    if random.random() < 0.3:
        document = {**document, "history": changed(random, image.config["history"])}
    image = dataclasses.replace(image, config=document)
    read_image(small.archive.write([image], folder / "image.tar", name="localhost/small:1").path, folder)


def oci_documents(random, folder):
    """A layout whose index.json is not what it was; digests guard all other documents."""
    with tarfile.open(small.write(folder, *LAYERS, **CONFIG)) as tar:
        tar.extractall(folder / "layout", filter="data")
    for name in ("index.json", "manifest.json"):
        path = folder / "layout" / name
        document = json.loads(path.read_text())
        text = (
            json.dumps(changed(random, document))
            if random.random() < 0.5
            else damaged(random, path.read_bytes())
        )
        path.write_bytes(text.encode() if isinstance(text, str) else text)
    read_image(folder / "layout", folder)


def cpuinfo(random, folder):
    armisa.cpuinfo.parse(damaged(random, (CPUINFO * 2).encode()).decode(errors="replace"))


def index_name(random, folder):
    path = wheels.write(
        folder, "thing-1.0-py3-none-any.whl", {"thing/_core.cpython-311-aarch64-linux-gnu.so": None}
    )
    name = (
        damaged(random, b"thing-1.0-1-py3-none-any")
        .decode(errors="replace")[:100]
        .replace("/", "_")
        .replace("\0", "")
    )
    index.add(folder / "index", [path.rename(folder / f"{name}.whl")])
    for page in (folder / "index").rglob("*.html"):
        assert "<script" not in page.read_text()


def wheel_documents(random, folder):
    """A wheel's bill of materials and its provenance, which `armbuild verify` compares."""
    bill, statement = DOCUMENTS
    if random.random() < 0.5:
        bill = changed(random, bill)
    files = {
        "thing/_core.cpython-311-aarch64-linux-gnu.so": None,
        "thing-1.0.dist-info/sboms/armbuild.cdx.json": json.dumps(bill).encode(),
    }
    path = wheels.write(folder, "thing-1.0-py3-none-any.whl", files)
    statement["subject"][0]["digest"]["sha256"] = cache.sha256(path)
    content = json.dumps(changed(random, statement)).encode()
    if random.random() < 0.3:
        content = damaged(random, content)
    written(path.with_name(path.name + provenance.SUFFIX), content)
    checks = verify.check(path)
    json.dumps([check.as_dict() for check in checks])
    assert all(str(check).isprintable() for check in checks)


def project_file(random, folder):
    """A stranger's pyproject.toml."""
    written(folder / "pyproject.toml", damaged(random, PROJECT))
    project.read(folder)


PARSERS = (wheel_file, wheel_member, elf_file, sdist_tar, sdist_zip, deb, oci_archive, oci_configuration,
           oci_documents, cpuinfo, index_name, wheel_documents, project_file,
           *damaged_documents.PARSERS, *damaged_sets.PARSERS)  # fmt: skip


class TooLong(BaseException):
    """No reader takes it for damage, as it would an OSError such as TimeoutError."""


def stop(number, _frame):
    what = f"{SECONDS} s of CPU time" if number == signal.SIGPROF else f"{HANGS} s"
    raise TooLong(f"more than {what}")


@pytest.fixture
def limits():
    """Give a function that sets the limits of time anew; they are gone at the end."""
    previous = {number: signal.signal(number, stop) for number in (signal.SIGPROF, signal.SIGALRM)}

    def start(seconds=SECONDS, hangs=HANGS):
        signal.setitimer(signal.ITIMER_PROF, seconds)
        signal.setitimer(signal.ITIMER_REAL, hangs)

    yield start
    start(0, 0)
    for number, handler in previous.items():
        signal.signal(number, handler)


def used():
    """Return seconds of CPU time, and the most bytes of memory, of this process and of its children."""
    both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in both), [one.ru_maxrss * 1024 for one in both]


@pytest.mark.parametrize("parser", PARSERS, ids=lambda parser: parser.__name__)
def test_a_damaged_file_is_read_refused_or_reported(tmp_path, monkeypatch, parser, limits):
    monkeypatch.setenv("ARMBUILD_CACHE_DIR", str(tmp_path / "cache"))
    _, before = used()
    sentences, times = [], []
    for number in range(max(1, COUNT // len(PARSERS))):
        (folder := tmp_path / str(number)).mkdir()
        start, _ = used()
        limits()
        try:
            parser(random.Random(f"{SEED}{parser.__name__} {number}"), folder)
        except REFUSALS as error:
            sentences.append(str(error))
        except (Exception, TooLong) as error:
            raise AssertionError(f"{parser.__name__} number {number}: {error!r}") from error
        finally:
            limits(0, 0)  # pytest may take longer to report a failure
        times.append((used()[0] - start, number))
        unpack._remove(folder)
    _, after = used()
    added = max(now - then for now, then in zip(after, before, strict=True))
    seconds, slowest = max(times)
    print(f"{parser.__name__}: {len(times)} files, {len(sentences)} refused, slowest {seconds:.2f} s"
          f" (number {slowest}), {added >> 20} MiB more")  # fmt: skip
    assert seconds < SECONDS
    assert added < MEMORY
    assert sorted(item.name for item in tmp_path.iterdir() if item.name != "cache") == []
    assert all(len(sentence) < 2000 for sentence in sentences)
