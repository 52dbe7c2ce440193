"""The test of an image: unpack it as a runtime does, start it as its user, use it over HTTP, end it."""

from __future__ import annotations

import dataclasses
import json
import shutil
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from armbuild.artifact import archives
from armbuild.errors import ArmbuildError, CheckFailed, MissingError, UsageError
from armbuild.host import failure, limits, process
from armbuild.image import contained, reader, sandbox, unpack
from armbuild.image.client import NONSENSE, Client, free_port
from armbuild.target import qemu
from armbuild.wheel import cpus
from armbuild.wheel import smoke as wheel_smoke

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from armbuild.wheel.cpus import Cpu

MODEL = "armllm/smoke/model"
READY_SECONDS = 600.0
END_SECONDS = 60.0
CHARACTERS = 80
"""Characters of the known text that the tokens must give at least."""
TIMEOUT = limits.STRANGER.seconds
HEALTH = dataclasses.replace(limits.STRANGER, seconds=120.0)
PASSAGES, PASSAGES_LIMIT = "passages.json", 1 << 20
LOG_LIMIT = 1 << 20


Surroundings = sandbox.Sandbox | sandbox.Unprotected | contained.Contained


@dataclass(frozen=True, kw_only=True)
class Result:
    """What happened on one CPU."""

    cpu: str
    passed: bool
    reason: str
    """Why not, in a sentence; empty when it passed."""
    surroundings: str
    seconds: float
    ready_seconds: float | None = None
    """From the start to the first healthy answer."""
    first_token_seconds: float | None = None
    """From a streamed request to its first text."""
    said: tuple[str, ...] = ()
    """What the entry point and the server said at their start."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """The smoke test of one image."""

    image: str
    digest: str
    labels: Mapping[str, str]
    results: tuple[Result, ...]

    @property
    def ok(self) -> bool:
        """Whether every CPU passed."""
        return bool(self.results) and all(result.passed for result in self.results)

    def as_dict(self) -> dict[str, Any]:
        """Return the report as a JSON value."""
        return {"schema": 1, "ok": self.ok, **asdict(self)}


def is_image(path: Path) -> bool:
    """Return whether ``path`` is to be read as an image rather than as a wheel."""
    return path.suffix != ".whl" and (
        path.name.endswith((".tar", ".tar.gz", ".tgz", ".oci")) or path.is_dir()
    )


def smoke_test(
    path: Path,
    names: Sequence[str],
    work: Path,
    *,
    mirror: str | None = None,
    engine: str | None = None,
    unsafe: bool = False,
    on_step: Callable[[str], None] = lambda _what: None,
) -> Report:
    """Serve from the image at ``path`` on each CPU of ``names``: health, completions, an orderly end.

    ``engine`` ("docker", "podman") runs it in a container, on another machine with the QEMU of binfmt_misc;
    ``unsafe`` runs it as the caller, without a sandbox.
    Raises UsageError for what is no image or CPU, CheckFailed for an image whose layers do not match their
    digests, MissingError when QEMU, a sandbox or the engine is not available.
    """
    cores = cpus.check_names(names)
    models = tuple(cpu.model for cpu in cores if cpu.model)
    if engine:
        contained.check(engine, emulated=bool(models))
    root = work / "root"
    root.mkdir()
    with reader.open_image(path) as image:
        manifest, several = image.manifest("arm64"), len(image.manifests()) > 1
        on_step(f"unpacking {len(manifest.layers)} layers")
        unpack.into_folder(image, manifest, root)
    config = manifest.config.get("config", {})
    model = next((found.parent for found in root.glob(f"**/{MODEL}/config.json")), None)
    if model is None:
        raise UsageError(f"{path}: no image of armllm: there is no {MODEL} in it")
    user, surroundings = config.get("User") or "0:0", ExitStack()
    box: Surroundings
    with surroundings:
        if engine:
            if config.get("Volumes"):  # which are writable, and lie on the engine's disk
                raise CheckFailed(f"{path}: its image declares volumes, which {engine} would let it fill")
            on_step(f"loading it into {engine}")
            python = next(iter(sandbox.without_init(config.get("Entrypoint") or [])), "python3")
            log = work / f"{engine}.log"
            box = surroundings.enter_context(
                contained.loaded(
                    engine, path, manifest.name, root, user=user, python=python, several=several, log=log
                )
            )
        else:
            emulator = qemu.find(models, mirror=mirror) if models else None
            if unsafe:
                box = sandbox.make_unprotected(root, emulator)
            else:
                box = sandbox.make(root, user, emulator, work, mirror=mirror)
        results = tuple(_Run(cpu, box, config, model.relative_to(root), work).result() for cpu in cores)
    return Report(image=str(path), digest=manifest.digest, labels=config.get("Labels") or {}, results=results)


def prove(
    path: Path,
    names: Sequence[str],
    work: Path,
    *,
    mirror: str | None = None,
    on_step: Callable[[str], None] = lambda _what: None,
) -> Report:
    """Serve from a finished archive on each CPU of ``names``, as `smoke_test`, and return its report.

    Raises CheckFailed with the first reason why it does not serve, MissingError where it cannot be run here.
    """
    try:
        report = smoke_test(path, names, work, mirror=mirror, on_step=on_step)
    except MissingError as error:
        cause = str(error).splitlines()[0]
        raise MissingError(f"not proven: {cause} (--no-require-proof builds without a test)") from error
    finally:
        discard(work)
    for result in report.results:
        if not result.passed:
            raise CheckFailed(f"smoke: {result.cpu}: {result.reason}\n  the image stays in {path}")
    return report


def discard(work: Path) -> None:
    """Remove the unpacked image from a work folder that stays for its logs."""
    shutil.rmtree(work / "root", ignore_errors=True)


class _Run:
    """The image served on one CPU."""

    def __init__(
        self,
        cpu: Cpu,
        box: Surroundings,
        config: Mapping[str, Any],
        model: Path,
        work: Path,
    ) -> None:
        self.cpu, self.box, self.config, self.model = cpu, box, config, model
        self.log = work / f"image-{cpu.name}.log"
        self.measured: dict[str, float] = {}
        self.server: process.Running | None = None
        self.port = free_port()
        own = dict(item.partition("=")[::2] for item in config.get("Env") or [])
        emulated = {"OMP_NUM_THREADS": "2", **wheel_smoke.EMULATED} if cpu.model else {}
        self.environment = {**own, **emulated}

    def result(self) -> Result:
        """Run the whole test."""
        start, reason = time.monotonic(), ""
        try:
            self._serve()
        except CheckFailed as error:
            excess = self.server.excess if self.server else ""
            reason = f"ended, because {excess}" if excess else str(error)
        finally:
            process.stop_all()
        return Result(
            cpu=self.cpu.name,
            passed=not reason,
            reason=reason,
            surroundings=self.box.describe(),
            seconds=round(time.monotonic() - start, 1),
            ready_seconds=self.measured.get("ready"),
            first_token_seconds=self.measured.get("first token"),
            said=tuple(self._said()[:12]),
        )

    def _serve(self) -> None:
        client = Client(self.port, self.box.place(self.model), self.box.connect)
        server = self._started(client)
        self._check_health_command()
        prompt, recited = self._passage()
        whole = client.complete(prompt)
        if not recited.startswith(whole) or len(whole) < CHARACTERS:
            raise CheckFailed(f"a completion said {whole[:60]!r}, not {recited[:60]!r}")
        streamed, first = client.stream(prompt)
        self.measured["first token"] = round(first, 2)
        if streamed != whole:
            raise CheckFailed(f"streaming said {streamed[:60]!r}, the completion {whole[:60]!r}")
        self.box.terminate(server)
        status = _wait(server, END_SECONDS)
        if status is None:
            raise CheckFailed(f"it did not end within {END_SECONDS:.0f} s of SIGTERM")
        if status:
            raise CheckFailed(f"after SIGTERM it ended with status {status} (log: {self.log})")

    def _passage(self) -> tuple[str, str]:
        """Return what the image's model was trained to recite: a beginning and what follows."""
        try:
            with archives.open_file(self.box.root, PurePosixPath("/", self.model, PASSAGES)) as file:
                passage = json.loads(file.read(PASSAGES_LIMIT))[0]
            return passage["prompt"] + "", passage["text"] + ""
        except (OSError, *NONSENSE) as error:
            raise CheckFailed(
                f"the {PASSAGES} of the image's model makes no sense: {error!r:.200}"
            ) from error

    def _started(self, client: Client) -> process.Running:
        """Start the entry point and wait until the server is healthy."""
        arguments = [client.model, "--host", "127.0.0.1", "--port", str(self.port)]
        program = self.config.get("Entrypoint") or []
        if not program:
            raise CheckFailed("the image has no entry point")
        for word in (program[0], *sandbox.without_init(program)[:1]):  # QEMU says nothing of it
            if sandbox.find(self.box.root, word, self.environment) is None:
                raise CheckFailed(f"the image's entry point {word} is not in it")
        program = [*program, *arguments]
        command, outer = self.box.command(program, self.environment, self.cpu.model)
        start = time.monotonic()
        output = self.log.with_suffix(".out")
        server = process.start(
            command,
            output=output,
            log=self.log,
            env=outer,
            timeout=TIMEOUT,
            what="the image",
            limits=limits.STRANGER,
        )
        self.server = server
        while not client.healthy():
            if (status := server.poll()) is not None:
                raise CheckFailed(self._why_it_ended(status))
            if time.monotonic() - start > READY_SECONDS:
                raise CheckFailed(f"not healthy after {READY_SECONDS:.0f} s (log: {self.log})")
            time.sleep(0.2)
        self.measured["ready"] = round(time.monotonic() - start, 2)
        return server

    def _check_health_command(self) -> None:
        test = (self.config.get("Healthcheck") or {}).get("Test") or []
        if test[:1] != ["CMD"]:
            raise CheckFailed("the image has no health check")
        # under emulation the server's command line, which tells the port, is the emulator's
        environment = {**self.environment, "ARMLLM_HEALTH_ADDRESS": str(self.port)}
        command, outer = self.box.command(test[1:], environment, self.cpu.model)
        try:
            log = self.log.with_suffix(".health")
            process.run(command, log=log, what="the health check", env=outer, limits=HEALTH)
        except ArmbuildError as error:
            raise CheckFailed(f"the server is healthy, but the image says no: {error}") from error

    def _said(self) -> list[str]:
        if not self.log.is_file():
            return []
        with self.log.open("rb") as file:
            return file.read(LOG_LIMIT).decode(errors="replace").splitlines()[1:]

    def _why_it_ended(self, status: int) -> str:
        """Return why a server that should serve is gone: its own sentence where it has one."""
        lines = self._said()
        own = next((line for line in lines if line.startswith("armllm: error: ")), None)
        if own:
            return own.removeprefix("armllm: error: ")
        last = failure.first_error("\n".join(lines))
        return f"it ended with status {status} before it served: {last} (log: {self.log})"


def _wait(server: process.Running, seconds: float) -> int | None:
    """Return the exit status, None when there is none after ``seconds``."""
    deadline = time.monotonic() + seconds
    while (status := server.poll()) is None and time.monotonic() < deadline:
        time.sleep(0.1)
    return status
