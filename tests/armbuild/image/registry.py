"""A container registry of this machine: Debian's docker-registry, which keeps its images in a folder."""

import contextlib
import subprocess
import time
import urllib.error
import urllib.request

from armbuild.image.client import free_port

SETTINGS = """
version: 0.1
log: {{level: warn}}
storage: {{filesystem: {{rootdirectory: {folder}/images}}}}
http: {{addr: "{address}"}}
"""


@contextlib.contextmanager
def serve(folder, monkeypatch):
    """Run a registry that skopeo reaches without TLS; yield its address."""
    address = f"127.0.0.1:{free_port()}"
    (settings := folder / "registry.yml").write_text(SETTINGS.format(folder=folder, address=address))
    trusted = folder / "home/.config/containers/registries.conf"
    trusted.parent.mkdir(parents=True)
    trusted.write_text(f'[[registry]]\nlocation = "{address}"\ninsecure = true\n')
    monkeypatch.setenv("HOME", str(folder / "home"))
    with (folder / "registry.log").open("w") as log:
        server = subprocess.Popen(["docker-registry", "serve", settings], stdout=log, stderr=log)
        try:
            deadline = time.monotonic() + 60
            while not _answers(f"http://{address}/v2/"):
                assert server.poll() is None, (folder / "registry.log").read_text()
                assert time.monotonic() < deadline, "the registry does not answer"
                time.sleep(0.05)
            yield address
        finally:
            server.terminate()
            server.wait(20)


def _answers(url):
    try:
        urllib.request.urlopen(url, timeout=10).close()  # noqa: S310 - an address of this machine
    except urllib.error.URLError:
        return False
    return True
