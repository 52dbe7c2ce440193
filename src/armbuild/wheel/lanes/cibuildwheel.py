"""The container lane's variables for cibuildwheel: engine, image, build identifiers. Pure and fast.

The options and their precedence (variables over ``[tool.cibuildwheel]``) are cibuildwheel's, documented at
https://cibuildwheel.pypa.io/en/stable/options/.
"""

from __future__ import annotations

import configparser
import difflib
import importlib.util
import os
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from armbuild.errors import UsageError
from armbuild.host import containers, pythons
from armbuild.host.containers import ENGINES
from armbuild.host.pythons import HostPython
from armbuild.toolchain import compile_cache, host_clang
from armbuild.wheel.plan import STATIC

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from armbuild.wheel.plan import Plan

COMMAND = ("-m", "cibuildwheel", "--platform", "linux", "--archs", "aarch64")
"""The arguments of ``python``; ``--output-dir`` follows."""
DOCKER_SOCKET = Path("/var/run/docker.sock")
PLATFORM = "linux/arm64"
DEFAULT_IMAGE = "manylinux_2_28"
"""cibuildwheel's own default since 3.0, and the floor of the cross lane."""
CPU = "neoverse-n1"
"""What QEMU is while it builds: checks that run programs must not find what the lowest server core lacks."""
PASSED = (
    "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_TRUSTED_HOST", "PIP_DEFAULT_TIMEOUT", "UV_DEFAULT_INDEX",
    "UV_INDEX", "UV_INDEX_URL", "all_proxy", "http_proxy", "https_proxy", "no_proxy", "ALL_PROXY",
    "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY",
)  # fmt: skip
"""Variables that a build in the container needs as much as one outside, passed by name: their values, which
may hold a password, stand nowhere."""
CERTIFICATES = ("PIP_CERT", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE")
"""The same, naming a file, which is mounted."""
COLLECT = (
    'cd "$(mktemp -d)" && python -m zipfile -e {wheel} . && mkdir -p /output/libraries && '
    "{ ${CC:-cc} --version || true; } > /output/compiler.txt && "
    f"{{ cp {compile_cache.IN_CONTAINER} /output/ccache.txt 2>/dev/null || true; }} && "
    "{ find . -type f -name '*.so*' -exec ldd '{}' ';' 2>/dev/null || true; } | "
    "sed -n 's/.* => \\(\\/[^ ]*\\) (.*/\\1/p' | sort -u | "
    'while read -r file; do cp -Ln "$file" /output/libraries/; done; mv {wheel} {dest_dir}'
)
"""In place of cibuildwheel's repair, which is done outside: bring out the libraries that it may bundle."""


@dataclass(frozen=True, kw_only=True)
class Container:
    """How the container lane builds."""

    engine: str
    image: str
    """As it was named; a short name such as ``manylinux_2_28`` is cibuildwheel's."""
    arguments: tuple[str, ...]
    """Arguments of ``ENGINE create``."""
    host_mount: bool
    """Whether the build sees this machine's files below ``/host``: only where the project says so."""
    variables: Mapping[str, str]
    """The ``CIBW_*`` variables for every Python."""
    unchanged: tuple[str, ...]
    """The project's own ``[tool.cibuildwheel]`` settings that stay in force."""
    overridden: Mapping[str, str]
    """Those that don't, each with what is used instead."""

    def environment(self, version: str, *arguments: str) -> dict[str, str]:
        """Return all variables that cibuildwheel is given for Python ``version``.

        ``arguments`` are further ones of ``ENGINE create``.
        """
        engine = _engine_text(self.engine, (*self.arguments, *arguments), host_mount=self.host_mount)
        return {"CIBW_BUILD": identifier(version), **self.variables, "CIBW_CONTAINER_ENGINE": engine}

    @property
    def reference(self) -> str:
        """Return the image's full name, such as ``quay.io/pypa/manylinux_2_28_aarch64@sha256:...``."""
        return _pinned().get(self.image, self.image)

    def as_dict(self, versions: Sequence[str]) -> dict[str, Any]:
        """Return what will be run as a JSON value."""
        return {
            "engine": self.engine,
            "image": self.reference,
            "command": ["python", *COMMAND],
            "build": [identifier(version) for version in versions],
            "environment": {**self.variables},
            "kept": list(self.unchanged),
            "overridden": dict(self.overridden),
        }


def compute(plan: Plan, *, emulated: bool, environ: Mapping[str, str]) -> Container:
    """Return the variables for cibuildwheel for the project of ``plan``, by its ``[tool.cibuildwheel]`` too.

    ``emulated``: the containers' programs run under QEMU. Raises UsageError for an engine that cibuildwheel
    does not drive.
    """
    tool = plan.project.tool.get("cibuildwheel", {})
    if not isinstance(tool, dict) or not isinstance(tool.get("linux", {}), dict):
        raise UsageError("pyproject.toml: [tool.cibuildwheel] must be a table")
    own = {**tool, **tool.get("linux", {})}
    stated = _engine(environ.get("CIBW_CONTAINER_ENGINE") or own.get("container-engine"))
    engine = plan.settings.engine or stated["name"] or _installed(environ)
    if engine not in ENGINES:
        near = difflib.get_close_matches(engine, ENGINES, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise UsageError(f"--engine {engine}: cibuildwheel drives {' and '.join(ENGINES)}{hint}")
    image = plan.settings.image or environ.get("CIBW_MANYLINUX_AARCH64_IMAGE")
    arguments = (*stated["arguments"], *_arguments(plan, emulated=emulated, environ=environ))
    variables = {
        "CIBW_CONTAINER_ENGINE": _engine_text(engine, arguments, host_mount=stated["host_mount"]),
        "CIBW_REPAIR_WHEEL_COMMAND": COLLECT,
    }
    replaced = {
        "build": "--python",
        "archs": "aarch64",
        "container-engine": f"{engine}, with its arguments kept and ours added",
        "repair-wheel-command": "armbuild's own repair",
    }
    if image or "manylinux-aarch64-image" not in own:
        variables["CIBW_MANYLINUX_AARCH64_IMAGE"] = image or DEFAULT_IMAGE
    if image:
        replaced["manylinux-aarch64-image"] = image
    if "audit-command" not in own:
        variables["CIBW_AUDIT_COMMAND"] = ""
    if pairs := _config_settings(plan):
        text = shlex.join(f"{name}={value}" for name, value in pairs)
        variables["CIBW_CONFIG_SETTINGS"] = replaced["config-settings"] = text
    if not plan.settings.smoke:
        variables["CIBW_TEST_SKIP"] = "*"
        replaced["test-skip"] = "--no-smoke"
    return Container(
        engine=engine,
        image=image or str(own.get("manylinux-aarch64-image", DEFAULT_IMAGE)),
        arguments=arguments,
        host_mount=stated["host_mount"],
        variables=variables,
        unchanged=tuple(sorted(key for key in own if key not in replaced and key not in SECTIONS)),
        overridden={key: value for key, value in replaced.items() if key in own},
    )


def _arguments(plan: Plan, *, emulated: bool, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the arguments of ``ENGINE create``."""
    flags = " ".join(plan.flags)
    return (
        "--rm",
        *_passed(environ),
        *((f"--env=QEMU_CPU={CPU}",) if emulated else ()),
        *((f"--env=CFLAGS={flags}", f"--env=CXXFLAGS={flags}") if flags else ()),
        f"--env=LDFLAGS={' '.join(('-Wl,-s', *(STATIC if plan.project.is_armllm else ())))}",
        *_history(history(plan.project.folder)),
        *(host_clang.arguments() if plan.toolchain == "clang" else ()),
        *_split("ARMBUILD_ENGINE_OPTIONS", environ.get("ARMBUILD_ENGINE_OPTIONS", "")),
    )


def _config_settings(plan: Plan) -> list[tuple[str, str]]:
    """Return the back end's settings: ours, but for those that the user sets, then the user's."""
    own = {f"cmake.define.{name}": value for name, value in plan.defines().items()}
    asked = {name for name, _ in plan.config_settings}
    return [*((name, value) for name, value in own.items() if name not in asked), *plan.config_settings]


SECTIONS = frozenset({"android", "ios", "linux", "macos", "pyodide", "windows"})


def history(project: Path) -> Path | None:
    """Return the folder with a project's git history, that of the repository for a work tree; else None."""
    entry = project / ".git"
    if entry.is_file():
        named = Path(entry.read_text(errors="replace").partition("gitdir:")[2].strip())
        return named.parents[1] if named.is_absolute() and named.parent.name == "worktrees" else None
    return entry.resolve() if entry.is_dir() else None


def identifier(version: str) -> str:
    """Return cibuildwheel's name for a build: ``cp313-manylinux_aarch64`` for "3.13"."""
    return f"cp{version.replace('.', '')}-manylinux_aarch64"


def python(version: str) -> HostPython:
    """Return the interpreter in the image: as PyPA's manylinux images have it."""
    folder = Path("/opt/python") / pythons.tags(version)
    return HostPython(
        version=version,
        executable=folder / "bin/python",
        include=folder / f"include/python{version}",
        magic="",
    )


def find(version: str) -> HostPython:
    """Return the interpreter in the image; raises UsageError for what is no supported version."""
    if version not in pythons.KNOWN:
        return pythons.find(version)  # which says what there is
    return python(version)


def clean(environ: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without those ``CIBW_*`` variables that would win over computed ones."""
    computed = {
        "BUILD", "SKIP", "ARCHS", "PLATFORM", "CONTAINER_ENGINE", "REPAIR_WHEEL_COMMAND", "OUTPUT_DIR",
        "MANYLINUX_AARCH64_IMAGE", "CONFIG_FILE", "DEBUG_KEEP_CONTAINER",
    }  # fmt: skip
    gone = {f"CIBW_{name}{end}" for name in computed for end in ("", "_LINUX")} - {"CIBW_SKIP"}
    return {name: value for name, value in environ.items() if name not in gone}


def _installed(environ: Mapping[str, str]) -> str:
    """Return docker where its daemon can be talked to, else podman, which needs none, else what is there."""
    there = containers.installed()
    if there == list(ENGINES) and not (environ.get("DOCKER_HOST") or DOCKER_SOCKET.exists()):
        return "podman"
    return there[0] if there else ENGINES[0]


def _engine_text(name: str, arguments: Sequence[str], *, host_mount: bool) -> str:
    return f"{name}; create_args: {shlex.join(arguments)}; disable_host_mount: {str(not host_mount).lower()}"


def _engine(value: Any) -> dict[str, Any]:
    """Read a ``container-engine``: "podman; create_args: --a --b" or a table."""
    found: dict[str, Any] = {"name": "", "arguments": (), "host_mount": False}
    if isinstance(value, dict):
        fields = {str(key).replace("-", "_"): item for key, item in value.items()}
    else:
        first, *rest = str(value or "").split(";")
        fields = {"name": first.strip().removeprefix("name:").strip()}
        for part in rest:
            key, _, text = part.partition(":")
            fields[key.strip().replace("-", "_")] = text.strip()
    found["name"] = str(fields.get("name", ""))
    arguments = fields.get("create_args", ())
    if isinstance(arguments, str):
        arguments = _split("container-engine: create_args", arguments)
    found["arguments"] = tuple(map(str, arguments))
    if "disable_host_mount" in fields:
        found["host_mount"] = str(fields["disable_host_mount"]).lower() in ("false", "0", "no", "off")
    return found


def _split(where: str, text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UsageError(f"{where}: {text}: {error}") from error


def _passed(environ: Mapping[str, str]) -> list[str]:
    caches = [name for name in environ if name.startswith(compile_cache.PASSED) and name != "CCACHE_STATSLOG"]
    arguments = [f"--env={name}" for name in (*PASSED, *sorted(caches)) if environ.get(name)]
    arguments.append(f"--env=CCACHE_STATSLOG={compile_cache.IN_CONTAINER}")
    folder = environ.get("CCACHE_DIR", "")
    if os.path.isabs(folder) and os.path.isdir(folder):  # noqa: PTH112, PTH117 - text that becomes an argument
        arguments.append(f"--volume={folder}:{folder}")
    mounted = set()
    for name in CERTIFICATES:
        file = environ.get(name, "")
        if os.path.isabs(file) and os.path.isfile(file):  # noqa: PTH117, PTH113 - text that becomes an argument
            arguments.append(f"--env={name}")
            mounted.add(file)
    return arguments + [f"--volume={file}:{file}:ro" for file in sorted(mounted)]


def _history(folder: Path | None) -> tuple[str, ...]:
    """Let back ends that compute the version from git see the history, which others may own."""
    if folder is None:
        return ()
    safe = ("GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*")
    return (f"--volume={folder}:{folder}:ro", *(f"--env={text}" for text in (*safe, "GIT_OPTIONAL_LOCKS=0")))


def _pinned() -> dict[str, str]:
    """Return what cibuildwheel's short image names stand for; empty without cibuildwheel."""
    found = importlib.util.find_spec("cibuildwheel")
    if found is None or found.origin is None:
        return {}
    table = configparser.ConfigParser(inline_comment_prefixes="#")
    table.read(Path(found.origin).with_name("resources") / "pinned_docker_images.cfg")
    return dict(table["aarch64"]) if table.has_section("aarch64") else {}
