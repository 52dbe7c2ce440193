"""The reader gives the pixels of transformers' processor, and what would cost much is refused."""

from __future__ import annotations

import io
import json
import re
import struct
import zlib

import numpy as np
import psutil
import pytest
from PIL import Image
from tests.armllm.models.picture_models import picture, processor, save

from armllm.errors import CheckpointError, RequestError
from armllm.models import read_model_config
from armllm.pictures import PictureReader

PICTURE = picture(0, 40, 72)


@pytest.fixture(scope="module")
def reader(tmp_path_factory):
    """One process for all tests here: it takes seconds to start."""
    folder = tmp_path_factory.mktemp("reader")
    save(folder)
    return PictureReader(folder, read_model_config(folder)[1].pictures)


@pytest.mark.parametrize("size", [(1, 1), (8, 8), (3, 590), (590, 3), (7, 9), (500, 333), (1100, 1300)])
def test_pixels_are_those_of_the_processor(reader, size):
    """Catches a resize that is not the one of transformers."""
    image = picture(3, *size)
    found = reader.read(image)
    expected = processor()(image, return_tensors="np")
    np.testing.assert_array_equal(found.pixels, expected["pixel_values"])
    assert (1, found.height, found.width) == tuple(expected["image_grid_thw"][0])
    assert found.area == size[0] * size[1]


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_what_is_transparent_lies_on_white_from_files_and_from_images(reader, mode):
    """Catches an image whose transparent black becomes black."""
    image = Image.new("RGBA", (40, 40), (0, 0, 0, 0)).convert(mode)
    if mode == "P":
        image.info["transparency"] = image.getpixel((0, 0))
    stored = io.BytesIO()
    image.save(stored, "PNG")
    expected = reader.read(Image.new("RGB", (40, 40), "white"))
    for given in (image, stored.getvalue()):
        assert reader.read(given).digest == expected.digest


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def with_chunks(chunks):
    """A PNG with others before its pixels."""
    stored = io.BytesIO()
    PICTURE.save(stored, "PNG")
    data = stored.getvalue()
    place = data.index(b"IDAT") - 4
    return data[:place] + chunks + data[place:]


def animated(kind, count):
    """A valid animation of many frames, which repeats its second one."""
    stored = io.BytesIO()
    frames = [Image.new("RGB", (8, 8), (90 * number, 0, 0)) for number in range(3)]
    frames[0].save(stored, kind, save_all=True, append_images=frames[1:])
    data = stored.getvalue()
    if kind == "WEBP":
        first = data.index(b"ANMF")
        frame = data[first : first + 8 + int.from_bytes(data[first + 4 : first + 8], "little")]
        body = data[8:first] + frame * count
        return b"RIFF" + struct.pack("<I", len(body)) + body
    first, second = (found.start() for found in list(re.finditer(b"\x21\xf9\x04", data))[:2])
    return data[:second] + data[first:second] * count + b";"


def animated_png(count):
    frame = zlib.compress(bytes(8 * 25))
    control = [
        struct.pack(">IIIIIHHBB", number, 8, 8, 0, 0, 1, 10, 0, 0) for number in range(0, 2 * count, 2)
    ]
    parts = [chunk(b"fcTL", control[0]), chunk(b"IDAT", frame)]
    for number, one in enumerate(control[1:], 1):
        parts += [chunk(b"fcTL", one), chunk(b"fdAT", struct.pack(">I", 2 * number - 1) + frame)]
    header = struct.pack(">IIBBBBB", 8, 8, 8, 2, 0, 0, 0)
    start = chunk(b"IHDR", header) + chunk(b"acTL", struct.pack(">II", count, 0))
    return b"\x89PNG\r\n\x1a\n" + start + b"".join(parts) + chunk(b"IEND", b"")


def scans(count):
    """A progressive JPEG whose last scan comes again and again."""
    stored = io.BytesIO()
    PICTURE.save(stored, "JPEG", progressive=True)
    data = stored.getvalue()
    return data[:-2] + data[data.rindex(b"\xff\xda") : -2] * count + data[-2:]


def runs(width, height, times):
    """A BMP of 8 bits in run lengths: each pixel has as many runs, and each row ends by itself."""
    body = (b"\x01\x05" * width * times + bytes(2)) * height + b"\x00\x01"
    header = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 8, 1, len(body), 0, 0, 256, 0)
    start = 14 + len(header) + 4 * 256
    return b"BM" + struct.pack("<IHHI", start + len(body), 0, 0, start) + header + bytes(4 * 256) + body


ZEROS = zlib.compress(bytes(1 << 20))
COSTLY = {
    "GIF of 30,000 frames": (lambda: animated("GIF", 30_000), None),
    "WebP of 100,000 frames": (lambda: animated("WEBP", 100_000), None),
    "PNG of 100,000 frames": (lambda: animated_png(100_000), None),
    "100,000 texts": (lambda: with_chunks(chunk(b"tEXt", b"a\0b") * 100_000), None),
    "one profile that is large": (
        lambda: with_chunks(chunk(b"iCCP", b"p\0\0" + zlib.compress(bytes(100 << 20)))),
        "can't be read",
    ),
    "9000 profiles": (
        lambda: with_chunks(chunk(b"iCCP", b"p\0\0" + ZEROS) * 9000),
        "more than one color profile",
    ),
    "9000 packed texts": (lambda: with_chunks(chunk(b"zTXt", b"p\0\0" + ZEROS) * 9000), "can't be read"),
    "5000 scans": (lambda: scans(5000), "more than 64 scans"),
    "3 million runs": (lambda: runs(72, 40, 1000), "BMP with run lengths has more than"),
    "64 million pixels in 8000 rows": (lambda: runs(8000, 8000, 0), "BMP with run lengths has more than"),
    "a run for each pixel": (lambda: runs(72, 40, 1), None),
}


@pytest.mark.parametrize("name", COSTLY)
def test_parts_that_unpack_to_much_work_cost_little(reader, name):
    """The reader has one process for all clients: 9000 profiles took it 25 s of CPU time."""
    make, refusal = COSTLY[name]
    reader.read(PICTURE)  # so that its process is there
    file, process = make(), reader._process._process
    assert len(file) < 20 << 20
    before = psutil.Process(process.pid).cpu_times()
    if refusal is None:
        assert reader.read(file).area <= 72 * 40
    else:
        with pytest.raises(RequestError, match=refusal):
            reader.read(file)
    after = psutil.Process(process.pid).cpu_times()  # of the same process
    assert after.user + after.system - before.user - before.system < 10


def test_the_pictures_of_a_request_have_a_limit_together(reader, monkeypatch):
    monkeypatch.setattr("armllm.pictures.MOST_PIXELS_TOGETHER", 2 * 40 * 72)
    png = io.BytesIO()
    PICTURE.save(png, "PNG")
    for third in (PICTURE, png.getvalue()):
        reading = reader.read_each([PICTURE, PICTURE, third])
        assert [next(reading).area for _ in range(2)] == [40 * 72] * 2
        with pytest.raises(RequestError, match="the pictures of a request may have"):
            next(reading)


def test_settings_of_another_processor_are_refused(tmp_path):
    save(tmp_path)
    config = read_model_config(tmp_path)[1].pictures
    path = tmp_path / "preprocessor_config.json"
    for settings, message in (
        ({"image_processor_type": "CLIPImageProcessor"}, "'CLIPImageProcessor' is not supported"),
        ({"patch_size": 14}, "patch_size is 14, and 4 in config.json"),
        ({"max_pixels": 1 << 40}, "are not supported"),
    ):
        path.write_text(json.dumps(settings))
        with pytest.raises(CheckpointError, match=message):
            PictureReader(tmp_path, config)
