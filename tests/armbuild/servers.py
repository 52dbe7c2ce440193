"""Servers that answer as a function says: too much, too slowly, something else."""

import contextlib
import re
import socket
import threading


@contextlib.contextmanager
def serving():
    """Give a function that starts a server, which answers each connection by a function; returns its port."""
    with contextlib.ExitStack() as stack:
        ended = threading.Event()
        stack.callback(ended.set)

        def start(answer):
            listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))

            def work():
                with contextlib.suppress(OSError):
                    while True:
                        connection, _ = listening.accept()
                        with connection, contextlib.suppress(OSError):
                            answer(connection, whole(connection), ended)

            threading.Thread(target=work, daemon=True).start()
            return listening.getsockname()[1]

        yield start


def whole(connection):
    """Return a request to its end: bytes that are unread at the close reset the connection."""
    request = b""
    while b"\r\n\r\n" not in request:
        if not (piece := connection.recv(1 << 16)):
            return request
        request += piece
    head, _, body = request.partition(b"\r\n\r\n")
    length = re.search(rb"(?i)^content-length: *(\d+)", head, re.MULTILINE)
    while length and len(body) < int(length[1]) and (piece := connection.recv(1 << 16)):
        body += piece
    return head + b"\r\n\r\n" + body


def sends(*parts):
    return lambda connection, _request, _ended: [connection.sendall(part) for part in parts]


def drips(head, part=b"x"):
    def answer(connection, _request, ended):
        connection.sendall(head)
        while not ended.wait(0.02):
            connection.sendall(part)

    return answer
