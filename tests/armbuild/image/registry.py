"""A container registry of this machine: Debian's docker-registry, which keeps its images in a folder."""

import contextlib
import urllib.error
import urllib.request

from tests.armbuild.image import daemons

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
    log = folder / "registry.log"
    with daemons.running(
        ["docker-registry", "serve", settings], log, lambda: _answers(f"http://{address}/v2/")
    ):
        yield address


def _answers(url):
    try:
        urllib.request.urlopen(url, timeout=10).close()  # noqa: S310 - an address of this machine
    except urllib.error.URLError:
        return False
    return True
