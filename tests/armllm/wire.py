"""Two network namespaces with a wire between them, which takes its time and loses packets.

The kernel's TCP runs at both ends. The wire is a thread here, since not every kernel has `tc netem`.
"""

from __future__ import annotations

import collections
import fcntl
import itertools
import os
import random
import select
import struct
import subprocess
import threading
import time

NEAR, FAR = "10.99.0.1", "10.99.0.2"  # the addresses of the two ends
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x1, 0x1000
LONGEST_PACKET = 1 << 16
_numbers = itertools.count()


class Wire:
    """A context. OSError or CalledProcessError if this machine does not allow namespaces.

    near, far: what to put in front of a command that is to run there. ``delay``: seconds each way. ``loss``:
    the share of packets that are lost.
    """

    def __init__(self, *, delay: float, loss: float) -> None:
        self.is_cut = False
        self.passed = self.lost = 0
        self._delay, self._loss = delay, loss
        self._random = random.Random(0)  # noqa: S311 - no secret
        self._names = [f"armllm{os.getpid()}-{next(_numbers)}" for _ in range(2)]
        self.near, self.far = (["nsenter", f"--net=/run/netns/{name}"] for name in self._names)
        self._files: list[int] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._carry, daemon=True)

    def __enter__(self):
        try:
            for name, address, other in zip(self._names, (NEAR, FAR), (FAR, NEAR), strict=True):
                _ip("netns", "add", name)
                file = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
                self._files.append(file)
                device = name.replace("armllm", "w")[:15]
                fcntl.ioctl(file, TUNSETIFF, struct.pack("16sH22x", device.encode(), IFF_TUN | IFF_NO_PI))
                _ip("link", "set", device, "netns", name)
                _ip("-n", name, "address", "add", address, "peer", other, "dev", device)
                _ip("-n", name, "link", "set", device, "up")
                _ip("-n", name, "link", "set", "lo", "up")
        except BaseException:
            self._remove()
            raise
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._remove()

    def _remove(self) -> None:
        for file in self._files:
            os.close(file)
        for name in self._names:
            subprocess.run(["ip", "netns", "delete", name], stderr=subprocess.DEVNULL, check=False)

    def _carry(self) -> None:
        others = dict(zip(self._files, reversed(self._files), strict=True))
        on_the_way: collections.deque[tuple[float, int, bytes]] = collections.deque()
        while not self._ended.is_set():
            wait = on_the_way[0][0] - time.monotonic() if on_the_way else 0.1
            for file in select.select(self._files, [], [], min(0.1, max(0.0, wait)))[0]:
                packet = os.read(file, LONGEST_PACKET)
                if self.is_cut or self._random.random() < self._loss:
                    self.lost += 1
                else:
                    on_the_way.append((time.monotonic() + self._delay, others[file], packet))
            while on_the_way and on_the_way[0][0] <= time.monotonic():
                _, file, packet = on_the_way.popleft()
                if not self.is_cut:
                    os.write(file, packet)
                    self.passed += 1


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)
