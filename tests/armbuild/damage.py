"""Random damage: bytes, JSON values, tars whose checksums hold."""

NUMBERS = (b"\0\0\0\0", b"\xff\xff\xff\xff", b"\xff\xff\xff\x7f", b"\0\0\0\x80", b"9999999999", b"-1")
TEXTS = (
    b"\0",
    b"\n",
    b"../",
    b"/etc/passwd",
    b'"',
    b"[" * 3000,
    b"\xff\xfe",
    b"<script>",
    "é".encode(),
    b"%s",
)
VALUES = (
    None,
    0,
    -1,
    1e308,
    10**4000,
    "",
    "x",
    "../x",
    "\x1b[2J\u202e",
    [],
    {},
    [[]],
    {"a": 1},
    True,
    "sha256:" + "0" * 64,
)


def damaged(random, content):
    """Change one to four places of ``content``: bits, numbers, texts, blocks left out, doubled or moved."""
    data = bytearray(content)
    for _ in range(random.randint(1, 4)):
        at = random.randrange(len(data) + 1)
        match random.randrange(7):
            case 0:
                data[at : at + 1] = bytes([random.randrange(256)])
            case 1:
                data[at : at + 4] = random.choice(NUMBERS)
            case 2:
                data[at:at] = random.choice(TEXTS)
            case 3:
                del data[at : at + random.choice((1, 8, 512))]
            case 4:
                data[at:at] = data[at : at + random.choice((8, 512, 4096))]
            case 5:
                other = random.randrange(len(data) + 1)
                data[at : at + 64] = data[other : other + 64]
            case 6:
                data[at:] = data[at:][: random.choice((0, 100, 1 << 20))]
    return bytes(data) or b"\0"


def changed(random, value):
    """Return a JSON value with one part of another type or content."""
    if isinstance(value, (dict, list)) and value and random.random() < 0.8:
        part = random.choice(list(value) if isinstance(value, dict) else range(len(value)))
        copy = value.copy()
        copy[part] = changed(random, value[part])
        return copy
    return random.choice(VALUES)


def written(path, content):
    path.write_bytes(content)
    return path


def with_checksums(content):
    data = bytearray(content)
    for at in range(0, len(data) - 511, 512):
        block = data[at : at + 512]
        if block[257:262] == b"ustar":
            data[at + 148 : at + 156] = b"%06o\0 " % (sum(block[:148]) + 8 * 32 + sum(block[156:]))
    return bytes(data)
