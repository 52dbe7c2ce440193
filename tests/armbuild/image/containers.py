"""Container engines for tests: podman and docker with a store of their own, which goes with the test."""

import contextlib
import os
import re
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from armbuild.host import failure
from armbuild.image import engines
from armbuild.wheel.lanes import container

CONFIGURATION = """
[containers]
netns = "host"
default_ulimits = ["nofile=20000:20000", "nproc=1000:1000"]
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
"""
STORAGE = """
[storage]
driver = "{driver}"
graphroot = "{folder}/store"
runroot = "{folder}/run"
"""
LIMITS = ("--ulimit", "nofile=20000:20000", "--ulimit", "nproc=1000:1000")
"""As low as a container that runs the tests may set them."""


class Engine:
    """An engine that answers; ``run`` fails the test with what the engine says."""

    def __init__(self, command, environment=None):
        self.command, self.environment = command, {**os.environ, **(environment or {})}

    def ask(self, *arguments):
        return subprocess.run(
            [*self.command, *map(str, arguments)],
            capture_output=True,
            text=True,
            check=False,
            env=self.environment,
        )

    def run(self, *arguments):
        done = self.ask(*arguments)
        assert done.returncode == 0, f"{self.command[0]} {' '.join(map(str, arguments))}: {done.stderr}"
        return done.stdout.strip()

    def logs(self, container):
        done = self.ask("logs", container)
        return done.stdout + done.stderr


@contextlib.contextmanager
def running(engine, *arguments):
    """Run a container in the background; yield its name, and remove it with all that runs in it."""
    name = f"armllm-test-{os.getpid()}"
    try:
        engine.run("run", "--detach", f"--name={name}", "--network=host", *LIMITS, *arguments)
        yield name
    finally:
        engine.ask("rm", "--force", "--volumes", name)


@contextlib.contextmanager
def engine(name):
    """Yield docker or podman; skip where this machine cannot run AArch64 containers, saying why."""
    if not container.registered():
        pytest.skip("no handler for AArch64 programs in binfmt_misc, which only root registers: ci/setup.sh")
    with _folder() as folder, _answering(name, folder) as found:
        yield found


@contextlib.contextmanager
def builder(name, monkeypatch):
    """Let the program ``name`` itself build, here with a store that goes with the test."""
    with _folder() as folder:
        if name == "docker":
            _prefer_buildkit(folder, monkeypatch)
        with _answering(name, folder) as found:
            for variable, value in found.environment.items():
                monkeypatch.setenv(variable, value)
            yield found


@contextlib.contextmanager
def _folder():
    """Yield a folder with a short name: podman takes 50 characters, a socket 107, and tmp_path has more."""
    folder = Path(tempfile.mkdtemp(prefix="ab-", dir="/tmp"))
    try:
        yield folder
    finally:
        mounted = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
        left = [place for place in reversed(mounted) if place.startswith(f"{folder}/")]  # by every engine
        subprocess.run(["umount", "--lazy", *left], check=False, capture_output=True)
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _answering(name, folder):
    """Yield the engine; skip only where the kernel gives this user no containers."""
    if shutil.which(name) is None:
        pytest.fail(f"{name} is not installed: ci/test.sh does that")
    with _docker(folder) if name == "docker" else _daemonless(name, folder) as found:
        answer = found.ask("info")
        if answer.returncode:
            tell = pytest.fail if _may_mount() else pytest.skip
            tell(f"{name} does not answer here: {failure.first_error(answer.stderr)}")
        yield found


@contextlib.contextmanager
def daemon_folder(name):
    """Yield a folder for the daemon ``name``; skip only where this user may not start it."""
    if shutil.which(name) is None:
        pytest.fail(f"{name} is not installed: ci/test.sh does that")
    if os.getuid() or not _may_mount():
        pytest.skip(f"{name} wants root, and CAP_SYS_ADMIN")
    with _folder() as folder:
        yield folder


def _may_mount():
    """Whether this process has CAP_SYS_ADMIN, which containers want of the one who runs them."""
    status = Path("/proc/self/status").read_text()
    return bool(int(re.search(r"^CapEff:\s*(\w+)", status, re.MULTILINE)[1], 16) >> 21 & 1)


def _prefer_buildkit(folder, monkeypatch):
    """Put the first docker client that has BuildKit in front of those that have not."""
    clients = [client for place in os.get_exec_path() if os.access(client := Path(place, "docker"), os.X_OK)]
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    for client in clients:
        (folder / "docker").symlink_to(client)
        if engines.has_buildkit():
            return
        (folder / "docker").unlink()
    pytest.fail("no docker client here has BuildKit: ci/test.sh installs one")


@contextlib.contextmanager
def _daemonless(name, folder):
    """Yield podman or buildah with its images in ``folder``."""
    settings, storage = folder / "containers.conf", folder / "storage.conf"
    settings.write_text(CONFIGURATION + ('runtime = "runc"\n' if shutil.which("runc") else ""))
    kind = subprocess.run(["stat", "-fc", "%T", folder], capture_output=True, text=True, check=True).stdout
    driver = "vfs" if kind.startswith("overlay") else "overlay"  # which copies no layers, but takes no other
    storage.write_text(STORAGE.format(folder=folder, driver=driver))
    yield Engine([name], {"CONTAINERS_CONF": str(settings), "CONTAINERS_STORAGE_CONF": str(storage)})


@contextlib.contextmanager
def _docker(folder):
    """Yield docker with a daemon of its own, which ends with the test; root alone may start one."""
    if os.getuid() or not shutil.which("dockerd"):
        yield Engine(["docker"])
        return
    address = f"unix://{folder}/docker.sock"
    folders = (f"--data-root={folder}/data", f"--exec-root={folder}/exec", f"--pidfile={folder}/pid")
    with (folder / "dockerd.log").open("w") as log:
        daemon = subprocess.Popen(
            ["dockerd", "--iptables=false", "--bridge=none", *folders, f"--host={address}"],
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            found = Engine(["docker"], {"DOCKER_HOST": address})
            deadline = time.monotonic() + 60
            while found.ask("info").returncode and daemon.poll() is None and time.monotonic() < deadline:
                time.sleep(0.5)
            yield found
        finally:
            daemon.terminate()
            daemon.wait(60)
