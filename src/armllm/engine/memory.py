"""How much memory is left, and how much of it the KV cache gets."""

from __future__ import annotations

from pathlib import Path

# Of what is left after the weights: the rest is for activations, the tokenizer and everybody else.
SHARE_FOR_KV_CACHE = 0.7
_CGROUPS = (  # (limit, usage) of version 2, of which memory.high is where it slows down, and of version 1
    ("memory.max", "memory.current"),
    ("memory.high", "memory.current"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes"),
)


def readable(num_bytes: int) -> str:
    """A size for people."""
    amount, unit = float(num_bytes), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if amount < 1024:
            break
        amount, unit = amount / 1024, larger
    return f"{amount:.4g} {unit}"


def available_memory(
    node: int | None = None, root: Path = Path("/"), *, share: int = 1, node_share: int = 1
) -> int:
    """Bytes that this process may still use: the least that machine, cgroups and NUMA node have left.

    ``share``: of machine and cgroups only this part, since so many processes will use as much.
    ``node_share``: the same of the node.
    """
    left = [_machine(root), *(_cgroup(folder) for folder in _cgroup_folders(root))]
    all_left = min(amount for amount in left if amount is not None) // share
    on_node = None if node is None else available_on_node(node, root)
    return max(0, all_left if on_node is None else min(all_left, on_node // node_share))


def _machine(root: Path) -> int:
    for line in (root / "proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/meminfo has no MemAvailable")


def available_on_node(node: int, root: Path = Path("/")) -> int | None:
    """Bytes that a NUMA node has left, its page cache included; None where it doesn't say."""
    values = {}
    try:
        lines = (root / f"sys/devices/system/node/node{node}/meminfo").read_text().splitlines()
    except OSError:
        return None
    for line in lines:  # Node 0 MemFree:  123 kB
        _, _, name, amount, *_ = line.split()
        values[name.rstrip(":")] = int(amount) * 1024
    parts = ("MemFree", "Active(file)", "Inactive(file)", "SReclaimable")
    return sum(values.get(name, 0) for name in parts) if "MemFree" in values else None


def _cgroup_folders(root: Path) -> list[Path]:
    """Our cgroup and those above it; within a container the hierarchy is often mounted at our own."""
    mount = root / "sys/fs/cgroup"
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    folders = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        base = mount / "memory" if controllers else mount
        inner = base / path.lstrip("/")
        folders += [inner, *(parent for parent in inner.parents if base in (parent, *parent.parents))]
    return folders


def _cgroup(folder: Path) -> int | None:
    """Bytes left in a cgroup; page cache counts as left, since the kernel frees it when memory is needed."""
    left = []
    for limit_name, usage_name in _CGROUPS:
        try:
            limit = int((folder / limit_name).read_text())  # "max" is none
            usage = int((folder / usage_name).read_text())
            statistics = (folder / "memory.stat").read_text()
        except (OSError, ValueError):
            continue
        values = dict(line.split() for line in statistics.splitlines() if len(line.split()) == 2)
        reclaimable = int(values.get("total_inactive_file", values.get("inactive_file", 0)))
        left.append(limit - usage + reclaimable)
    return min(left, default=None)
