"""A new elementwise op takes the files that docs/contributing/add-an-op.md lists, and no others."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pybind11
import pytest

ROOT = Path(__file__).parents[3]
FUNCTION = """template <class V>
ARMLLM_INLINE V square(V x) {
  return mul(x, x);
}

"""
FACE = '''def square(out: Tensor, x: Tensor) -> None:
    """Write ``x * x`` to ``out``."""
    extension.square(out, x)


'''
IN_TORCH = '''def square(out: Tensor, x: Tensor) -> None:
    """Square."""
    out.copy_(x.float().square())


'''
EXACT = """const Reference kSquare = {[](double x) { return x * x; },
                           [](double x) { return x * x * u + kVanishing; }};
"""
STUB = "def square(out: torch.Tensor, x: torch.Tensor, /) -> None: ...\n"
# Per file, behind what the lines for `square` go.
EDITS = {
    "csrc/include/armllm/kernels.h": [
        (r"  X\(quick_gelu, quick_gelu, ##__VA_ARGS__\) +\\\n", "  X(square, square, ##__VA_ARGS__) \\\n")
    ],
    "csrc/kernels/activation.h": [
        (r"(?=// tanh\(y\) = 1)", FUNCTION),
        (r"ARMLLM_FUNCTION\(quick_gelu\)\n", "ARMLLM_FUNCTION(square)\n"),
    ],
    "src/armisa/data/kernels.toml": [(r'"quick_gelu", ', '"square", ')],
    "src/armllm/_kernels.pyi": [(r"def quick_gelu\(.*\n", STUB)],
    "src/armllm/kernels/activation.py": [(r"(?=def relu)", FACE)],
    "src/armllm/kernels/__init__.py": [
        (r"(?=quick_gelu, relu)", "square, "),
        (r'    "quick_gelu",\n', '    "square",\n'),
    ],
    "src/armllm/kernels/reference.py": [
        (r'    "quick_gelu",\n', '    "square",\n'),
        (r"(?=def relu)", IN_TORCH),
    ],
    "tests/csrc/activation.cpp": [
        (r"(?=const Reference kRelu)", EXACT),
        (r" +ACTIVATION\(quick_gelu, .*\n", "      ACTIVATION(square, kSquare, false),\n"),
    ],
    "tests/armllm/kernels/test_activation.py": [
        (r'    "quick_gelu": .*\n', '    "square": (kernels.square, lambda x: x * x),\n')
    ],
    "docs/kernels.md": [(r"\| `gelu`, `quick_gelu`.*\n", "| `square` | the square |\n")],
}
COPIED = (
    "csrc", "cmake", "src", "tests/csrc", "tests/armllm/kernels", "docs/kernels.md", "CMakeLists.txt",
    "pyproject.toml",
)  # fmt: skip
OPTIONAL_TARGETS = (
    "AVX2", "AVX512", "AVX512_VNNI", "AVX512_BF16", "AMX", "DOTPROD", "SVE", "FHM", "BF16", "I8MM",
)  # fmt: skip
COMPARE = """
from armllm.smoke.ops import compare
for storage in ("f32", "f16", "bf16"):
    result = compare(f"square_{storage}")
    assert result.ok, result
"""


def run(*command, cwd, **environment):
    done = subprocess.run(
        command, cwd=cwd, env=os.environ | environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]


def test_the_page_lists_the_files_of_an_elementwise_op():
    page = (ROOT / "docs/contributing/add-an-op.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `(\S+)` \|", page, re.MULTILINE) == list(EDITS)
    assert len(EDITS) <= 10


@pytest.mark.slow
def test_a_new_elementwise_op_touches_no_other_file(tmp_path):
    """Catches a list of ops that none of these files is, of which a new op would be missing."""
    tree = tmp_path / "tree"
    for name in COPIED:
        source, copy = ROOT / name, tree / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, copy, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
        else:
            shutil.copy(source, copy)
    for name, edits in EDITS.items():
        text = (tree / name).read_text(encoding="utf-8")
        for place, new in edits:
            text, count = re.subn(f"({place})", lambda found, new=new: found[0] + new, text)
            assert count >= 1, (name, place)
        (tree / name).write_text(text, encoding="utf-8")
    build = tmp_path / "build"
    run(
        sys.executable, "-m", "cmake", "-G", "Ninja", "-S", str(tree), "-B", str(build),
        *(f"-DARMLLM_{target}=OFF" for target in OPTIONAL_TARGETS),
        f"-DCMAKE_MAKE_PROGRAM={Path(sys.executable).parent / 'ninja'}",
        f"-DPython_EXECUTABLE={sys.executable}",
        f"-Dpybind11_DIR={pybind11.get_cmake_dir()}",
        "-DCMAKE_CXX_FLAGS_RELEASE=-O1", "-DARMLLM_CONFORMANCE=ON",
        cwd=tmp_path,
    )  # fmt: skip
    test = "conformance/CMakeFiles/conformance_tests.dir/activation.cpp.o"
    run(sys.executable, "-m", "cmake", "--build", str(build), "--target", "_kernels", test, cwd=tmp_path)
    for library in build.glob("_kernels*.so"):
        shutil.copy(library, tree / "src" / "armllm")
    run(sys.executable, "-c", COMPARE, cwd=tree, PYTHONPATH=str(tree / "src"))
    tests = ("test_activation.py", "test_binding.py", "test_extension.py", "test_faces.py")
    run(
        sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider",
        "-k", "square or stub or agree or registry",
        *(f"tests/armllm/kernels/{name}" for name in tests),
        cwd=tree, PYTHONPATH=str(tree / "src"),
    )  # fmt: skip
