"""Packages import only what lies below them: an import that goes up, or around in a circle, is named here.

Imports for type checkers and those within functions count as well.
"""

from __future__ import annotations

import ast
import graphlib
import re
from pathlib import Path

import pytest

SOURCES = Path(__file__).parents[1] / "src"
# From the ground up. What stands in one line does not know its neighbors, packages know themselves.
FLOORS = (
    ("errors", "module_names"),
    ("utils", "lora"),
    (
        "foregone",
        "inputs",
        "environment",
        "helper_process",
        "progress",
        "kernels",
        "outputs",
        "sampling_params",
    ),
    ("pooling_params",),
    ("checkpoint",),
    ("quant", "tokenizer", "chat"),
    ("rendering", "pictures"),
    ("layers",),
    ("models", "vllm_plugin"),
    ("engine",),
    ("convert", "openvino"),
    ("api",),
    ("",),  # armllm/__init__.py, which offers the classes of api
    ("doctor", "bench"),
    ("server", "smoke"),
    ("cli",),
    ("__main__",),
    ("entrypoints",),
)
HEIGHT = {name: height for height, names in enumerate(FLOORS) for name in names}
# package of the distribution -> those it may import of the four
ALLOWED = {
    "armisa": {"armisa"},
    "armcli": {"armcli"},
    "armllm": {"armcli", "armisa", "armllm"},
    "armbuild": {"armbuild", "armcli", "armisa", "armllm"},
}


def modules(package: str) -> dict[str, Path]:
    """Modules by their dotted names."""
    found = {}
    for path in sorted((SOURCES / package).rglob("*.py")):
        parts = path.relative_to(SOURCES).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(path: Path, known: dict[str, Path]) -> set[str]:
    """What a file imports: modules of ``known`` where a name is one, else what stands after ``from``."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.module is not None, f"{path}: a relative import"
            assert not node.level, f"{path}: a relative import"
            full = {alias.name: f"{node.module}.{alias.name}" for alias in node.names}
            names |= {name if name in known else node.module for name in full.values()}
    return names


def floor_of(module: str) -> str:
    """armllm.quant.awq -> quant."""
    return module.partition(".")[2].partition(".")[0]


ARMLLM = modules("armllm")
GRAPH = {name: imports(path, ARMLLM) & ARMLLM.keys() - {name} for name, path in ARMLLM.items()}


def test_every_module_of_the_engine_has_its_floor():
    assert {floor_of(name) for name in ARMLLM} == set(HEIGHT)


def test_the_page_lists_the_floors():
    """A floor is a line of docs/architecture.md, the top one first."""
    page = (SOURCES.parent / "docs/architecture.md").read_text(encoding="utf-8")
    lines = re.findall(
        r"^    (\w+(?:, \w+)*)(?:  .*)?$", page.partition("Imports go downwards")[2], re.MULTILINE
    )
    listed = [{"" if name == "armllm" else name for name in line.split(", ")} for line in lines]
    assert listed == [set(names) for names in reversed(FLOORS)]


@pytest.mark.parametrize("name", sorted(HEIGHT))
def test_a_floor_stands_on_those_below(name):
    upwards = [
        f"{module} imports {other}"
        for module, others in GRAPH.items()
        if floor_of(module) == name
        for other in others
        if floor_of(other) != name and HEIGHT[floor_of(other)] >= HEIGHT[name]
    ]
    assert upwards == []


def test_no_module_imports_itself_by_way_of_others():
    try:
        graphlib.TopologicalSorter(GRAPH).prepare()
    except graphlib.CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


@pytest.mark.parametrize("package", sorted(ALLOWED))
def test_the_packages_know_only_those_below(package):
    foreign = [
        f"{module} imports {name}"
        for module, path in modules(package).items()
        for name in imports(path, {})
        if name.partition(".")[0] in ALLOWED.keys() - ALLOWED[package]
    ]
    assert foreign == []


def test_an_import_that_goes_up_would_be_seen(tmp_path):
    file = tmp_path / "low.py"
    file.write_text(
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    from armllm.api.llm import LLM\n"
        "def late():\n    from armllm import engine\n    import armllm.cli.main\n"
    )
    known = {"armllm.engine": file, "armllm.api.llm": file}
    assert imports(file, known) >= {"armllm.api.llm", "armllm.engine", "armllm.cli.main"}
