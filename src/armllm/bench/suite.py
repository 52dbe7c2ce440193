"""A suite of benchmarks: a JSON file of cases, in the form of vLLM's for CPUs, as commands of `armllm`."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

from armllm.checkpoint import json_file
from armllm.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

READY_SECONDS = 1800
PARAMETERS = ("parameters", "server_parameters", "client_parameters")
KEYS = {
    "test_name",
    "tier",
    *PARAMETERS,
    "server_environment_variables",
    "environment_variables",
    "qps_list",
    "max_concurrency_list",
}


@dataclasses.dataclass(frozen=True)
class Case:
    """One case. tier: a group of cases, or empty. server: the arguments of `armllm serve`, or None.

    clients: those of `armllm bench`.
    """

    name: str
    model: str
    dtype: str
    tier: str
    environment: dict[str, str]
    server: list[str] | None
    clients: list[list[str]]


def read_suite(path: Path, result_dir: Path) -> list[Case]:
    """The cases of a file: a list of tests, or tests with defaults; RequestError says what is wrong."""
    try:
        document = json_file.parse(path.read_bytes())
    except OSError as error:
        raise RequestError(f"{path}: {error.strerror or error}") from None
    except ValueError as error:
        raise RequestError(f"{path} is no JSON: {error}") from None
    defaults = document.get("defaults", {}) if isinstance(document, dict) else {}
    tests = document.get("tests") if isinstance(document, dict) else document
    if not isinstance(tests, list) or not isinstance(defaults, dict):
        raise RequestError(f"{path} must be a list of tests, or an object with tests and maybe defaults")
    return [_case(path, number, test, defaults, result_dir) for number, test in enumerate(tests, 1)]


def _case(path: Path, number: int, test: Any, defaults: dict[str, Any], result_dir: Path) -> Case:
    where = f"{path}, test {number}"
    if not isinstance(test, dict) or not isinstance(test.get("test_name"), str):
        raise RequestError(f"{where} must be an object with a test_name")
    merged = {**defaults, **test}
    for key in (*PARAMETERS, "server_environment_variables", "environment_variables"):
        parts = [defaults.get(key, {}), test.get(key, {})]
        if not all(isinstance(part, dict) for part in parts):
            raise RequestError(f"{where}: {key} must be an object")
        merged[key] = {**parts[0], **parts[1]}
    if unknown := sorted(set(merged) - KEYS):
        raise RequestError(f"{where}: unknown key {unknown[0]!r}")
    name = test["test_name"]
    parameters = merged["server_parameters"] if "server_parameters" in test else merged["parameters"]
    if not isinstance(parameters.get("model"), str):
        raise RequestError(f"{where}: its parameters name no model")
    environment = {
        key: str(value)
        for source in ("environment_variables", "server_environment_variables")
        for key, value in merged[source].items()
    }
    server = None
    if "server_parameters" in test:
        options = {key: value for key, value in parameters.items() if key != "model"}
        server = ["serve", parameters["model"], *_arguments(options)]
        clients = list(_clients(name, merged, result_dir))
    else:
        kind = name.partition("_")[0]
        if kind not in ("latency", "throughput"):
            raise RequestError(
                f"{where}: {name!r} must begin with latency or throughput, or have server_parameters"
            )
        output = ["--output-json", str(result_dir / f"{name}.json")]
        clients = [["bench", kind, *_arguments(parameters), *output]]
    return Case(
        name=name,
        model=parameters["model"],
        dtype=str(parameters.get("dtype", "auto")),
        tier=str(merged.get("tier", "")),
        environment=environment,
        server=server,
        clients=clients,
    )


def _clients(name: str, test: dict[str, Any], result_dir: Path) -> Iterator[list[str]]:
    rates = ",".join(map(str, test.get("qps_list", ["inf"])))
    port = test["server_parameters"].get("port")
    options = {**({} if port is None else {"port": port}), **test["client_parameters"]}
    options = {key: value for key, value in options.items() if key != "model"}  # the server's
    for limit in test.get("max_concurrency_list", [None]):
        concurrency = [] if limit is None else ["--max-concurrency", str(limit)]
        file_name = f"{name}.json" if limit is None else f"{name}_concurrency_{limit}.json"
        yield [
            *("bench", "serve", "--ready-check-timeout-sec", str(READY_SECONDS), *_arguments(options)),
            *("--request-rate", rates, *concurrency, "--result-dir", str(result_dir)),
            *("--result-filename", file_name),
        ]


def _arguments(options: dict[str, Any]) -> list[str]:
    """``{"max_model_len": 4096, "ignore_eos": ""}`` as options; false and null leave one out."""
    result: list[str] = []
    for key, value in options.items():
        flag = f"--{key.replace('_', '-')}"
        if value is True or value == "":
            result.append(flag)
        elif value is not None and value is not False:
            result += [flag, str(value) if isinstance(value, str | int | float) else json.dumps(value)]
    return result


def run_case(case: Case) -> int:
    """Run its commands; return the first status that is not 0."""
    environment = {**os.environ, **case.environment}
    program = [sys.executable, "-m", "armllm"]
    server = None if case.server is None else subprocess.Popen([*program, *case.server], env=environment)
    try:
        return _run_clients(program, case.clients, environment, server)
    finally:
        if server is not None:
            server.terminate()
            server.wait()


def _run_clients(
    program: list[str],
    clients: Sequence[list[str]],
    environment: dict[str, str],
    server: subprocess.Popen[bytes] | None,
) -> int:
    for arguments in clients:
        with subprocess.Popen([*program, *arguments], env=environment) as client:
            try:
                while client.poll() is None:
                    if server is not None and server.poll() is not None:  # it will never be ready
                        return server.returncode or 1
                    time.sleep(0.2)
            finally:
                client.terminate()
        if client.returncode:
            return client.returncode
    return 0
