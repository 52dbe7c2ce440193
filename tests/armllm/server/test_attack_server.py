"""The tool that measures a server beside hostile clients."""

from __future__ import annotations

import http.server
import os
import threading

import pytest

import attack_server as tool


def test_a_server_that_says_it_is_not_healthy_ends_the_tool():
    """It would catch an error that ends the watching thread alone, without a word."""
    asked = threading.Event()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.set()
            self.send_error(500)

        def do_POST(self):
            assert asked.wait(60)
            self.send_error(500)

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            with pytest.raises(SystemExit, match="/health does not answer 200"):
                tool.measure(tool.Served(server.server_port, os.getpid(), 0), 1)
        finally:
            server.shutdown()
