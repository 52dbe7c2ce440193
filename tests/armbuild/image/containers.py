"""Container engines for tests: podman and docker with a store of their own, which goes with the test."""

import contextlib
import os
import shutil
import subprocess
import time

import pytest

from armbuild import process
from armbuild.lanes import container

CONFIGURATION = """
[containers]
netns = "host"
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
"""
LIMITS = ("--ulimit", "nofile=20000:20000", "--ulimit", "nproc=1000:1000")
"""As low as a container that runs the tests may set them."""


class Engine:
    """An engine that answers; ``run`` fails the test with what the engine says."""

    def __init__(self, command, environment=None):
        self.command, self.environment = command, {**os.environ, **(environment or {})}

    def ask(self, *words):
        return subprocess.run(
            [*self.command, *map(str, words)],
            capture_output=True,
            text=True,
            check=False,
            env=self.environment,
        )

    def run(self, *words):
        done = self.ask(*words)
        assert done.returncode == 0, f"{self.command[0]} {' '.join(map(str, words))}: {done.stderr}"
        return done.stdout.strip()

    def logs(self, container):
        done = self.ask("logs", container)
        return done.stdout + done.stderr


@contextlib.contextmanager
def running(engine, *words):
    """Run a container in the background; yield its name, and remove it with all that runs in it."""
    name = f"armllm-test-{os.getpid()}"
    try:
        engine.run("run", "--detach", f"--name={name}", "--network=host", *LIMITS, *words)
        yield name
    finally:
        engine.ask("rm", "--force", "--volumes", name)


@contextlib.contextmanager
def engine(name, folder):
    """Yield docker or podman; skip where this machine cannot run AArch64 containers, saying why."""
    if not container.registered():
        pytest.skip("no handler for AArch64 programs in binfmt_misc, which only root registers: ci/setup.sh")
    try:
        with podman(folder) if name == "podman" else docker(folder) as found:
            said = found.ask("info")
            if said.returncode:
                pytest.skip(f"{name} does not answer here: {process.first_error(said.stderr)}")
            yield found
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # a gigabyte, which pytest would keep


@contextlib.contextmanager
def podman(folder):
    """Yield podman with its images in ``folder``."""
    settings = folder / "containers.conf"
    settings.write_text(CONFIGURATION + ('runtime = "runc"\n' if shutil.which("runc") else ""))
    store = ("--root", str(folder / "store"), "--runroot", str(folder / "run"))
    yield Engine(["podman", *store], {"CONTAINERS_CONF": str(settings)})


@contextlib.contextmanager
def docker(folder):
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
            found = Engine(["docker", "--host", address])
            deadline = time.monotonic() + 60
            while found.ask("info").returncode and daemon.poll() is None and time.monotonic() < deadline:
                time.sleep(0.5)
            yield found
        finally:
            daemon.terminate()
            daemon.wait(60)
            subprocess.run(["umount", *folder.glob("exec/netns/*")], check=False, capture_output=True)
