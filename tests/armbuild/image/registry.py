"""A container registry in little, for tests that push: OCI distribution specification, in memory."""

import contextlib
import hashlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit


class Registry(BaseHTTPRequestHandler):
    """One repository's blobs and manifests, whatever the repository is called."""

    protocol_version = "HTTP/1.1"

    def do_HEAD(self):
        self._give()

    def do_GET(self):
        self._give()

    def do_POST(self):
        self._answer(202, Location=f"{self.path.rstrip('/')}/upload", Range="0-0")

    def do_PATCH(self):
        self.server.pending[self.path] = self._body()
        self._answer(202, Location=self.path, Range="0-0")

    def do_PUT(self):
        address, content = urlsplit(self.path), self._body()
        content = content or self.server.pending.pop(address.path, b"")
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        if "/blobs/" in address.path and parse_qs(address.query)["digest"] != [digest]:
            self._answer(400)
            return
        for name in (digest, address.path.rpartition("/")[2]):
            self.server.stored[name] = (self.headers.get("Content-Type", ""), content)
        self._answer(201, **{"Docker-Content-Digest": digest})

    def _give(self):
        name = self.path.rpartition("/")[2]
        if self.path == "/v2/":
            self._answer(200)
        elif name not in self.server.stored:
            self._answer(404)
        else:
            kind, content = self.server.stored[name]
            self._answer(200, content, **{"Content-Type": kind})

    def _body(self):
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _answer(self, status, content=b"", **headers):
        self.send_response(status)
        for name, value in {**headers, "Content-Length": len(content)}.items():
            self.send_header(name, str(value))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *_):
        """Say nothing."""


@contextlib.contextmanager
def serve():
    """Run a registry; yield its address and what it stores (digest or tag -> (media type, content))."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Registry) as server:
        server.stored, server.pending = {}, {}
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"127.0.0.1:{server.server_port}", server.stored
        finally:
            server.shutdown()
