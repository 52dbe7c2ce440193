"""Small wheels for tests, right and wrong in every way that matters."""

import struct
import zipfile

from packaging.tags import parse_tag

from armbuild.wheel.repair import record_of

MACHINES = {"aarch64": 183, "x86_64": 62, "arm": 40}


def elf(machine="aarch64", *, bits=64, big=False):
    """The beginning of a shared object."""
    order = ">" if big else "<"
    head = b"\x7fELF" + bytes([2 if bits == 64 else 1, 2 if big else 1, 1]) + bytes(9)
    return head + struct.pack(f"{order}HH", 3, MACHINES[machine]) + bytes(44)


def static_library(*objects):
    """An ar archive."""
    body = b"!<arch>\n"
    for name, content in objects:
        body += f"{name + '/':<16}{0:<12}{0:<6}{0:<6}{644:<8}{len(content):<10}`\n".encode() + content
        body += b"\n" * (len(content) % 2)
    return body


def write(
    folder,
    name="thing-1.0-cp311-cp311-linux_aarch64.whl",
    files=None,
    *,
    metadata="",
    tags=None,
    inside=None,
):
    """Write a wheel called ``name``; ``inside`` is the (name, version) that its metadata states."""
    distribution, version, *tag = name.removesuffix(".whl").split("-")
    stated = inside or (distribution, version)
    info = f"{stated[0]}-{stated[1]}.dist-info"
    tags = tags or sorted(map(str, parse_tag("-".join(tag[-3:]))))
    metadata = f"Metadata-Version: 2.4\nName: {stated[0]}\nVersion: {stated[1]}\n{metadata}\ntext\n"
    content = {
        "thing/_core.cpython-311-aarch64-linux-gnu.so": elf(),
        **(files or {}),
        f"{info}/METADATA": metadata.encode(),
        f"{info}/WHEEL": (
            "Wheel-Version: 1.0\nRoot-Is-Purelib: true\n" + "".join(f"Tag: {line}\n" for line in tags)
        ).encode(),
    }
    content = {key: value for key, value in content.items() if value is not None}
    record = f"{info}/RECORD"
    content[record] = record_of({**content, record: b""}, record)
    path = folder / name
    with zipfile.ZipFile(path, "w") as archive:
        for key, value in content.items():
            archive.writestr(key, value)
    return path
