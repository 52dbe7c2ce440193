"""Stages on several machines: machine 0 waits for the others, and each proves that it has the common key.

Both ends answer a challenge of the other's by an HMAC, of messages of a fixed size. Nothing else is read from
a connection before that. What is sent later is not encrypted: the machines need a private network.
"""

from __future__ import annotations

import contextlib
import hmac
import logging
import secrets
import socket
import struct
import time
from typing import TYPE_CHECKING, NamedTuple

from armllm import environment
from armllm.engine.messages import Link
from armllm.errors import EngineError, RequestError

if TYPE_CHECKING:
    from armllm.engine.config import EngineConfig

logger = logging.getLogger(__name__)

JOIN_SECONDS = 600.0  # until all machines have to be there
PROOF_SECONDS = 3.0  # for a connection to show that it has the key
RETRY_SECONDS = 0.2
NONCE = 32
HELLO = struct.Struct(f"!I{NONCE}s32s")  # of a node: its rank, its challenge, its proof
GONE_MILLISECONDS = 10_000  # without an answer to what was sent


class Node(NamedTuple):
    """Another machine's end, and its address for people."""

    link: Link
    address: str


def wait_for_nodes(config: EngineConfig) -> list[Node]:
    """All other machines, in order; EngineError names those that did not come in time."""
    key = environment.nodes_key()
    nodes: dict[int, Node] = {}
    deadline = time.monotonic() + JOIN_SECONDS
    where = (config.master_addr, config.master_port)
    try:
        listener = socket.create_server(where, family=_family(config.master_addr))
    except OSError as error:
        raise RequestError(f"master_addr {where[0]}, master_port {where[1]}: {error.strerror}") from None
    with listener, contextlib.ExitStack() as on_failure:
        logger.info("waiting for %d machines at %s port %d", config.nnodes - 1, *where)
        while len(nodes) < config.nnodes - 1:
            listener.settimeout(max(0.001, deadline - time.monotonic()))
            try:
                connection, address = listener.accept()
            except TimeoutError:
                missing = sorted(set(range(1, config.nnodes)) - set(nodes))
                raise EngineError(
                    f"node {', '.join(map(str, missing))} of {config.nnodes} did not come to {where[0]} port"
                    f" {where[1]} within {JOIN_SECONDS:g} seconds: run the same command there with"
                    " --node-rank and --headless"
                ) from None
            rank = _admit(connection, key)
            if rank is None or not 0 < rank < config.nnodes or rank in nodes:
                connection.close()
                logger.warning(
                    "a connection from %s is refused: %s",
                    address[0],
                    "it has another key" if rank is None else f"node {rank} is not expected",
                )
                continue
            nodes[rank] = Node(_link(connection), address[0])
            on_failure.callback(nodes[rank].link.close)
            logger.info("node %d has come from %s", rank, address[0])
        on_failure.pop_all()
    return [nodes[rank] for rank in sorted(nodes)]


def join(config: EngineConfig) -> Link:
    """The connection of this machine to machine 0; EngineError if it is not there in time, or not the one."""
    key = environment.nodes_key()
    deadline = time.monotonic() + JOIN_SECONDS
    where = (config.master_addr, config.master_port)
    while True:
        try:
            connection = socket.create_connection(where, timeout=PROOF_SECONDS)
            break
        except OSError as error:
            if time.monotonic() > deadline:
                raise EngineError(f"node 0 does not listen at {where[0]} port {where[1]}: {error}") from None
            time.sleep(RETRY_SECONDS)
    try:
        challenge = _receive(connection, NONCE)
        own = secrets.token_bytes(NONCE)
        rank = config.node_rank
        connection.sendall(HELLO.pack(rank, own, _proof(key, b"node", rank, challenge + own)))
        proved = hmac.compare_digest(_receive(connection, 32), _proof(key, b"head", rank, challenge + own))
    except (OSError, EOFError):
        proved = False
    if not proved:
        connection.close()
        raise EngineError(
            f"{where[0]} port {where[1]} refused node {config.node_rank}: it has another ARMLLM_NODES_KEY,"
            " or such a node already"
        )
    return _link(connection)


def _admit(connection: socket.socket, key: bytes) -> int | None:
    """The rank of a node that has the key."""
    connection.settimeout(PROOF_SECONDS)
    challenge = secrets.token_bytes(NONCE)
    try:
        connection.sendall(challenge)
        rank, own, proof = HELLO.unpack(_receive(connection, HELLO.size))
        if not hmac.compare_digest(proof, _proof(key, b"node", rank, challenge + own)):
            return None
        connection.sendall(_proof(key, b"head", rank, challenge + own))
    except (OSError, EOFError):
        return None
    return int(rank)


def _proof(key: bytes, who: bytes, rank: int, challenges: bytes) -> bytes:
    return hmac.digest(key, b"armllm 1 %s %d %s" % (who, rank, challenges), "sha256")


def _receive(connection: socket.socket, size: int) -> bytes:
    data = b""
    deadline = time.monotonic() + PROOF_SECONDS
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part or time.monotonic() > deadline:
            raise EOFError
        data += part
    return data


def _link(connection: socket.socket) -> Link:
    """Messages from now on; a machine that is no longer there is noticed."""
    connection.settimeout(None)
    for level, option, value in (
        (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 2),
        (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 2),
        (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4),
        (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, GONE_MILLISECONDS),
    ):
        connection.setsockopt(level, option, value)
    return Link(connection)


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET
