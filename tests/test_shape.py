"""The shape of the code: names that say something, functions that fit on a screen."""

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("armbuild", "armcli", "armisa", "armllm")
MAX_LINES, MAX_PARAMETERS = 60, 8
VAGUE = frozenset(
    ["choices", "kit", "words", "kept", "told", "given", "chosen", "said", "made", "stuff", "thing", "things"]
)


def trees():
    """Names from the package on, of tools from the root on."""
    folders = [*(ROOT / "src" / package for package in PACKAGES), ROOT / "tools", ROOT / "cmake"]
    paths = [*sorted(path for folder in folders for path in folder.rglob("*.py")), ROOT / "noxfile.py"]
    for path in paths:
        name = path.relative_to(ROOT).as_posix().removeprefix("src/")
        yield name, ast.parse(path.read_text())


def functions():
    for path, tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{path}:{node.name}", node


def parameters(node):
    arguments = node.args
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return [argument.arg for argument in named if argument.arg not in ("self", "cls")]


def bound(tree):
    """Every name that a module binds: functions, classes, variables, parameters, attributes and fields."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name


OPTIONS = "its parameters are options of the command line"
LONG = {
    "armbuild/cli/audit.py:audit_command": OPTIONS,
    "armbuild/cli/docker.py:docker_command": OPTIONS,
    "armllm/cli/serve.py:serve_command": OPTIONS,
}
MANY_PARAMETERS = {
    "armbuild/cli/audit.py:audit_command": OPTIONS,
    "armbuild/cli/detect.py:detect_command": OPTIONS,
    "armbuild/cli/docker.py:docker_command": OPTIONS,
    "armbuild/cli/manylinux_image.py:manylinux_image_command": OPTIONS,
    "armbuild/cli/smoke.py:smoke_command": OPTIONS,
    "armllm/cli/bench.py:latency": OPTIONS,
    "armllm/api/llm.py:chat": "those of vLLM's method",
    "armllm/cli/chat.py:chat_command": OPTIONS,
    "armllm/cli/run_batch.py:run_batch_command": OPTIONS,
    "armllm/cli/run.py:run_command": OPTIONS,
    "armllm/cli/serve.py:serve_command": OPTIONS,
    "armllm/kernels/attention.py:paged_attention": "the tensors of the op",
    "armllm/kernels/reference.py:paged_attention": "the tensors of the op",
    "armllm/kernels/attention.py:varlen_attention": "the tensors of the op",
    "armllm/kernels/reference.py:varlen_attention": "the tensors of the op",
    "armllm/models/rope.py:read_rope": "what families leave open in config.json",
}
STILL_VAGUE = {
    # "words" are the A64 instructions of a file, 32 bits each, as Arm's manual calls them
    "armbuild/audit/code.py": {"words"},
    "armbuild/audit/functions.py": {"words"},
    "armbuild/audit/instructions.py": {"words"},
    "armbuild/audit/paths.py": {"words"},
    "armbuild/audit/report.py": {"words"},
    "armbuild/audit/startup.py": {"words"},
    # a key of the document that `armbuild smoke --json` prints
    "armbuild/wheel/verdict.py": {"said"},
    "armbuild/image/smoke.py": {"said"},
    # the key of an OpenAI answer
    "armllm/server/chat.py": {"choices"},
    "armllm/server/completions.py": {"choices"},
    "armllm/server/protocol/chat.py": {"choices"},
    "armllm/server/protocol/completions.py": {"choices"},
    "armbuild/image/client.py": {"choices"},
}


@pytest.mark.parametrize(
    ("measure", "most", "exceptions"),
    [
        (lambda node: node.end_lineno - node.lineno + 1, MAX_LINES, LONG),
        (lambda node: len(parameters(node)), MAX_PARAMETERS, MANY_PARAMETERS),
    ],
    ids=["lines", "parameters"],
)
def test_a_function_is_no_longer_and_takes_no_more_than_it_may(measure, most, exceptions):
    """The exceptions may only become fewer."""
    assert {name for name, node in functions() if measure(node) > most} <= set(exceptions)


def test_clang_tidy_refuses_the_same_in_cpp(tmp_path):
    """It runs over csrc in `nox -s lint`. A longer function has its reason in place."""
    body = "".join(f"  x += {line};\n" for line in range(MAX_LINES + 1))
    parameters = ", ".join(f"int p{number}" for number in range(MAX_PARAMETERS + 1))
    source = tmp_path / "long.cpp"
    source.write_text(f"int tall(int x) {{\n{body}  return x;\n}}\nint wide({parameters}) {{ return p0; }}\n")
    command = ["clang-tidy", f"--config-file={ROOT / '.clang-tidy'}", "--quiet", source, "--"]
    found = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    assert re.findall(r"function '(\w+)' exceeds", found) == ["tall", "wide"]
    for path in (ROOT / "csrc").rglob("*.[ch]*"):
        for reason in re.findall(r"NOLINT(?!END)\w*\(readability-function-size\)(.*)", path.read_text()):
            assert len(reason) > 20, path


def test_no_function_has_the_name_of_its_module_or_package():
    """A package that exports such a function hides the module, which then cannot be imported by its name."""
    found = set()
    for path, tree in trees():
        names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        found |= {f"{path}:{name}" for name in names & {Path(path).stem, Path(path).parent.name}}
    assert not found


def test_names_are_the_fields_terms_and_not_vague():
    """In what tests share, too."""
    shared = [path for path in (ROOT / "tests").rglob("*.py") if not path.name.startswith("test_")]
    assert len(shared) > 10
    shared_trees = [(path.relative_to(ROOT).as_posix(), ast.parse(path.read_text())) for path in shared]
    for path, tree in [*trees(), *shared_trees]:
        assert VAGUE & {Path(path).stem, *bound(tree)} <= STILL_VAGUE.get(path, set()), path


def test_names_in_cpp_are_the_fields_terms_and_not_vague():
    """Every word of the code counts, but not those of comments and texts."""
    prose = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.DOTALL)
    sources = [
        path
        for folder in ("csrc", "tests/csrc")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".cpp", ".h")
    ]
    assert len(sources) > 50
    for path in sources:
        assert not VAGUE & set(re.findall(r"\w+", prose.sub("", path.read_text()))), path


def test_what_subclasses_must_define_is_abstract():
    """Else a class that lacks a method fails only when it is called."""
    for path, tree in trees():
        raised = {
            ast.unparse(node.exc) for node in ast.walk(tree) if isinstance(node, ast.Raise) and node.exc
        }
        assert not {text for text in raised if text.startswith("NotImplementedError")}, path
