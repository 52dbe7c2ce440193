"""A Hugging Face checkpoint as OpenVINO's intermediate representation (IR), by optimum-intel."""

from __future__ import annotations

import subprocess
from importlib.util import find_spec
from typing import TYPE_CHECKING

from armllm.checkpoint.hub import IR
from armllm.errors import CheckpointError, RequestError
from armllm.helper_process import python_module
from armllm.progress import progress

if TYPE_CHECKING:
    from pathlib import Path

_FORMATS = {"float32": "fp32", "float": "fp32", "float16": "fp16", "half": "fp16"}


def is_ir(folder: Path) -> bool:
    """Whether the folder has a converted model."""
    return (folder / IR).is_file()


def check_parts(folder: Path) -> None:
    """CheckpointError for a model of several graphs, whose config.json is not that of one."""
    parts = sorted(path.name for path in folder.glob("openvino_*_model.xml"))
    if parts and not is_ir(folder):
        raise CheckpointError(
            f"{folder} has {', '.join(parts)} in place of {IR}: models of several graphs, such as those for"
            " pictures, speech and translation, are not supported"
        )


def weight_options(quantization: str | None, dtype: str) -> list[str]:
    """The arguments of ``optimum-cli export openvino`` for our names of weights and dtype.

    NNCF rounds: 8 bits with a scale per output, 4 bits in groups, symmetric. The embedding and the head have
    8 bits then. RequestError for 8 bits in groups, which NNCF does not have.
    """
    if quantization is None:
        return ["--weight-format", _FORMATS.get(dtype, "bf16")]
    bits, _, group = quantization.partition("-g")
    if bits == "int8" and group:
        raise RequestError(f"quantization {quantization!r}: OpenVINO's 8 bits have no groups; take int8")
    if bits == "int8":
        return ["--weight-format", "int8"]
    size = "-1" if quantization == "int4-channelwise" else group or "128"
    fallback = "error" if group else "adjust"
    options = ["--weight-format", "int4", "--sym", "--ratio", "1.0", "--group-size", size]
    return [*options, "--group-size-fallback", fallback]


def convert(folder: Path, target: Path, options: list[str]) -> None:
    """Write the IR of a checkpoint into ``target``, in a process whose memory ends with it.

    RequestError names the extra that has the converter. CheckpointError has the last line of its error.
    """
    if find_spec("optimum") is None or find_spec("optimum.intel") is None:
        raise RequestError(
            f"{folder} has no {IR}, and optimum-intel is not here to make one: pip install 'armllm[openvino]'"
        )
    command = [*python_module("optimum.commands.optimum_cli"), "export", "openvino", "--model", str(folder)]
    command += ["--task", "text-generation-with-past", *options, str(target)]
    with progress.step("converting the model for OpenVINO"):
        done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if done.returncode or not is_ir(target):
        lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        reason = lines[-1] if lines else f"status {done.returncode}"
        raise CheckpointError(f"{folder}: optimum-intel does not convert it: {reason:.300}")
