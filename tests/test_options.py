"""Options of both command lines and of the tools: one word for the output place, and groups in `--help`."""

import ast
import re
from pathlib import Path

import pytest
import typer
from typer.core import TyperGroup

from armbuild import cli as armbuild
from armcli.groups import OUTPUT
from armllm import cli as armllm

ROOT = Path(__file__).parents[1]
MOST_UNGROUPED = 8
PLACE = re.compile(r"--(.*-)?(out|output|dest|destination|result|save|write|report|plot|to)(-|$)")
WRITES = re.compile(r"\b(write|written|save|saved|store|leave)\b", re.IGNORECASE)

VLLM = "vLLM's command has this name"
NUMBER = "a number of tokens"
NAMED_OTHERWISE = {
    "armbuild audit --sarif": "of two documents it names the one that goes to a file",
    "armbuild wheel --lock": "a file that is read, and written only where it is not there",
    "armllm bench compare --plot": "what it names is a drawing of the table that is printed",
    "armllm bench serve --plot": "what two drawings and their formats are called begins so",
    "armllm bench latency --output-json": VLLM,
    "armllm bench throughput --output-json": VLLM,
    "armllm bench serve --result-dir": VLLM,
    "armllm bench serve --result-filename": VLLM,
    "armllm run-batch --output-file": VLLM,
    "armllm run-batch --output-tmp-dir": VLLM,
    "armllm bench latency --output-len": NUMBER,
    "armllm bench throughput --output-len": NUMBER,
    "armllm bench serve --output-len": NUMBER,
    "tools/bench_quantized.py --output-len": NUMBER,
    "tools/conformance.py --keep": "the folder of the build, which is else a temporary one",
    "tools/count_bytes.py --keep": "the same",
    "tools/count_instructions.py --keep": "the same",
    "tools/cycles.py --keep": "the same",
}


def commands():
    """(name, command) of every command of both programs."""
    for name, module in (("armbuild", armbuild), ("armllm", armllm)):
        program = typer.main.get_command(module.app)
        stack = [(name, program)]
        while stack:
            path, command = stack.pop()
            below = command.list_commands(None) if isinstance(command, TyperGroup) else []
            stack += [(f"{path} {word}", command.get_command(None, word)) for word in below]
            if not below:
                yield path, command


COMMANDS = dict(commands())


def options_with_a_value():
    """(name, help) of each, of the tools too."""
    for path, command in COMMANDS.items():
        for option in command.params:
            if option.param_type_name == "option" and not option.is_flag:
                yield f"{path} {option.opts[0]}", option.help or ""
    for path in sorted((ROOT / "tools").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument":
                about = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
                name = ast.literal_eval(node.args[0])
                if name.startswith("--") and "action" not in about:
                    yield f"tools/{path.name} {name}", about.get("help", "")


def test_one_word_says_where_the_output_goes():
    """Others are found by their name or their help; each has the reason for its name above."""
    options = dict(options_with_a_value())
    assert len(options) > 300
    others = {
        name
        for name, text in options.items()
        if not name.endswith(" --output") and (PLACE.search(name.split()[-1]) or WRITES.search(text))
    }
    assert others == set(NAMED_OTHERWISE)
    assert sum(name.endswith(" --output") for name in options) >= 7


@pytest.mark.parametrize("path", sorted(COMMANDS))
def test_a_command_with_many_options_shows_all_in_groups(path):
    """Typer's tables and plain help show the same groups."""
    command = COMMANDS[path]
    context = typer.Context(command, info_name=path)
    options = [
        one for one in command.get_params(context) if one.param_type_name == "option" and not one.hidden
    ]
    if len(options) > MOST_UNGROUPED:
        assert [one.opts[0] for one in options if one.rich_help_panel is None] == []
    assert context.command.get_help_option(context).rich_help_panel == OUTPUT
    command.rich_markup_mode = None
    headings = re.findall(r"^(\w[^:\n]*):$", command.get_help(context), re.MULTILINE)
    assert set(headings) >= {one.rich_help_panel or "Options" for one in options}
    assert len(headings) == len(set(headings))


def test_serve_has_the_groups_of_vllm():
    groups = {option.rich_help_panel for option in COMMANDS["armllm serve"].params}
    assert groups >= {"Model", "Parallelism", "Cache", "Scheduler", "LoRA", "Frontend", OUTPUT}


@pytest.mark.parametrize("command", ["wheel", "docker"])
def test_builds_have_the_groups_of_the_settings(command):
    groups = {option.rich_help_panel for option in COMMANDS[f"armbuild {command}"].params}
    assert groups >= {"Build", "Target", "Proof", OUTPUT}
