# ruff: noqa: INP001 - a script of the build, not a module
"""Write csrc's dispatch table: ``kernel_table.py KERNELS_TOML MACHINE COMPILED,... OUTPUT``.

MACHINE is "aarch64" or "x86_64"; COMPILED lists the targets that are being built. Called by CMake. A target's
ops are expanded by src/armisa/kernel_ops.py, which is loaded alone: its package needs other packages.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found, unused-ignore]

KV_CACHE_OPS = ("kv_cache_layout", "write_kv_cache", "paged_attention")

_SPEC = importlib.util.spec_from_file_location(
    "kernel_ops", Path(__file__).parents[1] / "src/armisa/kernel_ops.py"
)
kernel_ops: Any = importlib.util.module_from_spec(_SPEC)  # type: ignore[arg-type]
_SPEC.loader.exec_module(kernel_ops)  # type: ignore[union-attr]
STORAGES = kernel_ops.STORAGE_TYPES


def check(target: dict[str, Any], path: Path) -> None:
    """Refuse a target that has only some of the ops that share a layout which only they know.

    A KV cache is written and read by the ops of one storage type, or of all of them if it is int8; a packed
    weight is read by a matmul of each.
    """
    ops = set(target["ops"])
    caches = [{f"{name}_{storage}" for name in KV_CACHE_OPS} for storage in STORAGES]
    caches.append({f"{name}_int8_{storage}" for name in KV_CACHE_OPS for storage in STORAGES})
    for cache in caches:
        if ops & cache and cache - ops:
            missing = ", ".join(sorted(cache - ops))
            sys.exit(f"{path}: target {target['name']} lacks {missing}: a KV cache's ops come together")
    for name in {op.rpartition("_")[0] for op in ops if op.startswith("matmul_")}:
        missing = ", ".join(f"{name}_{storage}" for storage in STORAGES if f"{name}_{storage}" not in ops)
        if missing:
            sys.exit(f"{path}: target {target['name']} lacks {missing}: all share one packed weight")


def table(targets: list[dict[str, Any]], compiled: set[str]) -> str:
    """Return the C++ text: declarations of the entries, the target list, the feature check."""
    lines = ["// Generated from kernels.toml by cmake/kernel_table.py."]
    rows = []
    for target in targets:
        name, ops, features = target["name"], target["ops"], target["features"]
        fill = "nullptr"
        if name in compiled:
            lines.append(f"namespace {name} {{")
            lines += [f"extern std::remove_pointer_t<decltype(KernelTable::{op})> {op};" for op in ops]
            lines.append("// NOLINTNEXTLINE(readability-function-size) - a line for each op")
            lines.append("static void fill(KernelTable& table) {")
            lines += [f"  table.{op} = &{op};" for op in ops]
            lines += ["}", f"}}  // namespace {name}"]
            fill = f"{name}::fill"
        lines += [
            f'static_assert(is_known("{feature}"), "unknown CPU feature {feature}");' for feature in features
        ]
        feature_list = ", ".join(f'"{feature}"' for feature in features)
        op_list = ", ".join(f"Op::{op}" for op in ops)
        is_compiled = "true" if name in compiled else "false"
        sve_bits = target.get("sve_bits", 0)
        rows.append(
            f'      {{"{name}", {is_compiled}, {{{feature_list}}}, {sve_bits}, {fill}, {{{op_list}}}}},'
        )
    lines += [
        "const std::vector<Target>& targets() {",
        "  static const std::vector<Target> kTargets = {",
        *rows,
        "  };",
        "  return kTargets;",
        "}",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Read the arguments, write the file only if it changes (so that nothing is rebuilt for nothing)."""
    toml, machine, compiled, output = sys.argv[1:]
    path = Path(toml)
    document = tomllib.loads(path.read_text(encoding="utf-8"))
    targets = [target for target in document["target"] if target["machine"] in ("any", machine)]
    for target in targets:
        try:
            target["ops"] = kernel_ops.target_ops(document, target)
        except ValueError as error:
            sys.exit(f"{path}: {error}")
        check(target, path)
    names = {target["name"] for target in targets}
    wanted = set(compiled.split(","))
    if not wanted <= names:
        sys.exit(f"{path}: no target named {', '.join(sorted(wanted - names))} for {machine}")
    text = table(targets, wanted)
    destination = Path(output)
    if not destination.exists() or destination.read_text(encoding="utf-8") != text:
        destination.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
