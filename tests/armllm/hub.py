"""A hub of one model on this machine."""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import json
import os
import threading


def put_into_cache(cache, name, files):
    """What huggingface_hub leaves behind after a download."""
    repository = cache / f"models--{name.replace('/', '--')}"
    snapshot = repository / "snapshots" / "0123456789abcdef0123456789abcdef01234567"
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(snapshot.name)
    for path in files:
        (snapshot / path.name).write_bytes(path.read_bytes())
    return snapshot


class FakeHub(http.server.BaseHTTPRequestHandler):
    """What a download needs of the hub's API: files of one model at two revisions, behind a token or not."""

    def reply(self, status, body=b"", **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.server.broken and self.path.endswith(self.server.broken):
            body = body[: len(body) // 2]
            self.close_connection = True
        if self.command == "GET":
            self.wfile.write(body)

    def do_GET(self):
        hub = self.server
        hub.paths.append(self.path)
        authorized = not hub.token or self.headers.get("Authorization") == f"Bearer {hub.token}"
        if hub.refusal or not authorized:
            status, code = hub.refusal or (401, "RepoNotFound")
            return self.reply(status, b"{}", **({"X_Error_Code": code} if code else {}))
        parts = self.path.partition("?")[0].strip("/").split("/")
        if parts[0] == "api":
            revision = parts[5] if len(parts) > 5 else "main"
            if "/".join(parts[2:4]) != "someone/tiny":
                return self.reply(404, b"{}", X_Error_Code="RepoNotFound")
            if revision not in hub.revisions:
                return self.reply(404, b"{}", X_Error_Code="RevisionNotFound")
            files = hub.revisions[revision]
            sha = next(name for name, held in hub.revisions.items() if held is files and len(name) == 40)
            if parts[4] == "tree":
                entries = [{"type": "file", "path": n, "size": len(c), "oid": sha} for n, c in files.items()]
                return self.reply(200, json.dumps(entries).encode(), Content_Type="application/json")
            document = {"id": "someone/tiny", "sha": sha, "siblings": [{"rfilename": name} for name in files]}
            return self.reply(200, json.dumps(document).encode(), Content_Type="application/json")
        content = hub.revisions[parts[3]][parts[4]]
        etag = hashlib.sha256(content).hexdigest()
        return self.reply(200, content, ETag=f'"{etag}"', X_Repo_Commit=parts[3])

    do_HEAD = do_GET  # noqa: N815 - http.server's name

    def log_message(self, *_arguments):
        """Say nothing."""


@contextlib.contextmanager
def fake_hub_of(folder):
    """The model in ``folder``, as "someone/tiny" on a hub at ``.server_port``."""
    files = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), FakeHub) as server:
        server.token, server.paths, server.broken, server.refusal = "", [], "", None
        main, old = {**files, "extra.bin": b"x"}, {"config.json": b"{}"}
        server.revisions = {"a" * 40: main, "main": main, "b" * 40: old, "old": old}
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def variables_for(hub, home):
    """The environment of a process that asks this hub, with downloads under ``home``."""
    variables = {**os.environ, "HF_ENDPOINT": f"http://127.0.0.1:{hub.server_port}", "HF_HOME": str(home)}
    for name in ("HF_HUB_OFFLINE", "HF_TOKEN", "HF_HUB_CACHE"):
        variables.pop(name, None)
    return variables
