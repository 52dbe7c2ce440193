"""Pictures, read and cut into patches in a process with limits.

A picture comes from a client: a file of a few bytes can ask for all memory, and readers of image formats have
had holes. The process is `python -m armllm.pictures`. Pillow reads the file there, and the image processor of
transformers makes what the model sees.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import io
import os
import struct
import sys
import threading
import warnings
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from armllm.checkpoint.json_file import read_object
from armllm.errors import BusyError, CheckpointError, RequestError, first_line
from armllm.helper_process import HelperProcess, answer_questions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    import numpy.typing as npt

    from armllm.checkpoint.config import PictureConfig

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP")
MOST_BYTES = 20 << 20  # of a file
MOST_PIXELS = 64_000_000  # of a picture, before it is made smaller
MOST_PIXELS_TOGETHER = 4 * MOST_PIXELS  # of the pictures of a request
MOST_SCANS = 64  # of a JPEG: each takes a few bytes, and as long as a whole picture
MOST_RUNS = 4 << 20  # bytes and pixels of a BMP with run lengths, which Pillow reads by a loop in Python
PNG, JPEG = b"\x89PNG\r\n\x1a\n", b"\xff\xd8"
CPU_SECONDS = 20
WALL_SECONDS = 300.0  # it has the lowest priority, and imports transformers first
MEMORY = 4 << 30  # beside what Python and transformers take
PROCESSORS = (
    "Qwen2VLImageProcessor",
    "Qwen2VLImageProcessorFast",
    "Qwen2VLImageProcessorPil",
    "Qwen2_5_VLImageProcessor",
)
# As on the hub, and as transformers 5 writes it, with all that makes a prompt in one file.
PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json")
SETTINGS = (
    *("size", "min_pixels", "max_pixels", "image_mean", "image_std", "rescale_factor", "resample"),
    *("do_resize", "do_rescale", "do_normalize", "do_convert_rgb"),
)
MOST_WAITING = 2 << 30  # bytes of pixels of all requests
LARGEST_SIDES = 1 << 26  # pixels that a checkpoint may ask for


class PictureLimit(NamedTuple):
    """How many pictures a prompt may have; ``refusal`` says why there may be none."""

    most: int
    refusal: str = ""

    def check(self, count: int) -> None:
        """RequestError unless there may be so many."""
        if count and self.refusal:
            raise RequestError(self.refusal)
        if count > self.most:
            raise RequestError(
                f"a prompt has {count} pictures; limit_mm_per_prompt allows at most {self.most}"
            )

    @property
    def takes_any(self) -> bool:
        """Whether a prompt may have one."""
        return not self.refusal and self.most > 0


class Patches(NamedTuple):
    """A picture as the model sees it: fp32 ``pixels[height * width, ...]``, and a hash of all of it.

    area: how many pixels it had before.
    """

    pixels: npt.NDArray[np.float32]
    height: int
    width: int
    digest: int
    area: int


class PictureReader:
    """Reads pictures as the image processor of a checkpoint does; may be used by several threads.

    CheckpointError if the processor is none that is known.
    """

    def __init__(self, folder: Path, config: PictureConfig) -> None:
        self._process = HelperProcess("armllm.pictures", _settings(folder, config), WALL_SECONDS)
        self._bytes = 0  # of pixels that are still to be computed
        self._lock = threading.Lock()
        self._shape = config.channels * config.temporal_patch_size * config.patch_size**2

    def read_each(self, pictures: Iterable[Any]) -> Iterator[Patches]:
        """The pictures of one request, each when it is asked for. Those that were read stay as they are.

        RequestError if one is refused, or if all of them have too many pixels together.
        """
        left = MOST_PIXELS_TOGETHER
        for picture in pictures:
            found = picture if isinstance(picture, Patches) else self.read(picture, left)
            left -= found.area
            yield found

    def read(self, picture: Any, most_pixels: int = MOST_PIXELS) -> Patches:
        """A file's bytes, a PIL image or an array ``[height, width, 3]`` of uint8.

        RequestError says why it is refused.
        """
        if self._bytes > MOST_WAITING:
            raise BusyError("too many pictures wait to be computed: try again later")
        answer = self._process.ask(_question(picture, most_pixels) | {"most_pixels": most_pixels})
        refusal = self._process.setup_answer
        if refusal or refusal is None:
            raise RequestError(
                refusal or "pictures can't be read: their process takes too much time or memory"
            )
        if answer is None:
            raise RequestError("a picture takes too much time or memory to read")
        if "error" in answer:
            raise RequestError(answer["error"])
        data = base64.b64decode(answer["pixels"])
        pixels = np.frombuffer(bytearray(data), np.float32).reshape(-1, self._shape)
        self._count(pixels.nbytes)
        weakref.finalize(pixels, self._count, -pixels.nbytes)
        digest = hashlib.sha256(f"{answer['height']} {answer['width']} ".encode() + data)
        number = int.from_bytes(digest.digest(), "little")
        return Patches(pixels, answer["height"], answer["width"], number, answer["area"])

    def _count(self, size: int) -> None:
        with self._lock:
            self._bytes += size


def picture_limit(folder: Path, config: PictureConfig | None, most: int, num_processes: int) -> PictureLimit:
    """Of the model in ``folder``, which so many processes compute."""
    if config is None:
        return PictureLimit(0, "this model takes no pictures")
    if num_processes > 1:
        return PictureLimit(
            0, "pictures need one process, or replicas: several processes compute the model here"
        )
    if not any((folder / name).is_file() for name in PROCESSOR_FILES):
        return PictureLimit(0, f"pictures need {PROCESSOR_FILES[0]}, which the model's folder does not have")
    return PictureLimit(most)


def take_pictures(
    messages: Sequence[Any], fetch: Callable[[str], bytes] | None = None
) -> tuple[list[Any], list[Any]]:
    """A conversation whose pictures are only marked, and the pictures, for `PictureReader.read`.

    A part of a message has one as ``{"type": "image_url", "image_url": {"url": "data:…"}}``
    or ``{"type": "image_pil", "image_pil": image}``. RequestError says why one is refused.
    ``fetch`` gets the file at an address of http or https; None: there are no such pictures.
    """
    pictures: list[Any] = []
    taken = []
    for message in messages:
        content = message.get("content") if isinstance(message, dict) else None
        if not isinstance(content, list):
            taken.append(message)
            continue
        parts: list[Any] = []
        for part in content:
            kind = part.get("type") if isinstance(part, dict) else None
            if kind == "image":  # what only this function may say
                raise RequestError("messages: content of type 'image' is not supported: send an image_url")
            if kind not in ("image_url", "image_pil"):
                parts.append(part)
                continue
            picture = part.get(kind)
            pictures.append(_from_url(picture, fetch) if kind == "image_url" else picture)
            parts.append({"type": "image"})
        taken.append(message | {"content": parts})
    return taken, pictures


def _from_url(value: Any, fetch: Callable[[str], bytes] | None) -> bytes:
    """The file in a data URL, or at an address."""
    url = value.get("url") if isinstance(value, dict) else value
    if not isinstance(url, str):
        raise RequestError('image_url must be an object such as {"url": "data:image/png;base64,…"}')
    if fetch is not None and url.lower().startswith(("http://", "https://")):
        return fetch(url)
    if not url.startswith("data:"):
        raise RequestError(
            f"image_url: {url[:40]!r} is not a data URL (data:image/png;base64,…), and others are not fetched"
        )
    head, comma, data = url[:100].partition(",")
    if not comma or not head.startswith("data:image/") or not head.endswith(";base64"):
        raise RequestError(
            f"image_url: a data URL of a picture begins as data:image/png;base64, not {head!r:.60}"
        )
    if len(url) * 3 > 4 * MOST_BYTES:
        raise RequestError(f"image_url: a picture may have at most {MOST_BYTES} bytes")
    data = url[len(head) + 1 :]
    try:
        return base64.b64decode(data, validate=True)
    except ValueError as error:
        raise RequestError(f"image_url: its data is not base64: {error}") from None


def _settings(folder: Path, config: PictureConfig) -> dict[str, Any]:
    """What the image processor is made with, from the first of `PROCESSOR_FILES` that is there."""
    path = next(folder / name for name in PROCESSOR_FILES if (folder / name).is_file())
    values = read_object(path)
    values = values.get("image_processor", values)
    if not isinstance(values, dict):
        raise CheckpointError(f"{path}: image_processor must be an object, not {values!r:.100}")
    kind = values.get("image_processor_type", PROCESSORS[0])
    if kind not in PROCESSORS:
        raise CheckpointError(
            f"{path}: image_processor_type {kind!r} is not supported, only {', '.join(PROCESSORS)}"
        )
    sizes = {
        "patch_size": config.patch_size,
        "merge_size": config.merge_size,
        "temporal_patch_size": config.temporal_patch_size,
    }
    for name, wanted in sizes.items():
        if values.get(name, wanted) != wanted:
            raise CheckpointError(f"{path}: {name} is {values[name]!r}, and {wanted} in config.json")
    size = values.get("size")
    numbers = [values.get("max_pixels"), *(size.values() if isinstance(size, dict) else [])]
    if any(isinstance(one, int) and one > LARGEST_SIDES for one in numbers):
        raise CheckpointError(f"{path}: pictures of more than {LARGEST_SIDES} pixels are not supported")
    return {name: values[name] for name in SETTINGS if values.get(name) is not None} | sizes


def _question(picture: Any, most_pixels: int) -> dict[str, Any]:
    if isinstance(picture, (bytes, bytearray, memoryview)):
        if len(picture) > MOST_BYTES:
            raise RequestError(f"a picture has {len(picture)} bytes; at most {MOST_BYTES} are allowed")
        return {"file": base64.b64encode(picture).decode()}
    if isinstance(picture, np.ndarray):
        if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[2] != 3 or not picture.size:
            raise RequestError("a picture as an array must be uint8 of the shape [height, width, 3]")
        height, width = picture.shape[:2]
        data = np.ascontiguousarray(picture).tobytes()
    elif hasattr(picture, "convert") and hasattr(picture, "size"):
        width, height = picture.size
        _check_pixels(width, height, most_pixels)
        data = _opaque(picture).tobytes()
    else:
        raise RequestError(
            "a picture must be a PIL image, an array [height, width, 3] of uint8, or the bytes of a file, not"
            f" {type(picture).__name__}"
        )
    _check_pixels(width, height, most_pixels)
    return {"raw": base64.b64encode(data).decode(), "size": [width, height]}


def _check_pixels(width: int, height: int, most: int) -> None:
    """``most``: what the other pictures of the request leave."""
    if width * height > MOST_PIXELS:
        raise RequestError(f"a picture has {width} x {height} pixels; at most {MOST_PIXELS} are allowed")
    if width * height > most:
        raise RequestError(f"the pictures of a request may have {MOST_PIXELS_TOGETHER} pixels together")


def _check_parts(file: bytes) -> None:
    """Refuse parts that unpack to much work each, and of which a file of the best kind has one or a few."""
    if file.startswith(JPEG) and file.count(b"\xff\xda") > MOST_SCANS:
        raise RequestError(f"a picture has more than {MOST_SCANS} scans")
    place, profiles = len(PNG), 0
    while file.startswith(PNG) and place + 8 <= len(file):
        size, kind = struct.unpack_from(">I4s", file, place)
        profiles += kind == b"iCCP"
        place += 12 + size
    if profiles > 1:
        raise RequestError("a picture has more than one color profile")


def _check_runs(image: Any, size: int) -> None:
    """Refuse a BMP of so many bytes with too many run lengths."""
    is_packed = image.format == "BMP" and image.info.get("compression") in (1, 2)  # RLE8, RLE4
    if is_packed and max(size, image.width * image.height) > MOST_RUNS:
        raise RequestError(f"a BMP with run lengths has more than {MOST_RUNS} bytes or pixels")


def _prepare(setup: dict[str, Any]) -> tuple[str, Callable[[dict[str, Any]], dict[str, Any]]]:
    """Why no picture can be read, empty if they can, and what reads one."""
    for module, package in (("PIL", "Pillow"), ("transformers", "transformers")):
        if importlib.util.find_spec(module) is None:
            return (
                f"pictures need {package}, which is not installed: pip install 'armllm[vision]'",
                lambda _: {},
            )
    # not needed for pixels, and it takes more time and memory than all the rest; None: as if not installed
    sys.modules["torch"] = None  # type: ignore[assignment]
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"  # it would warn of that
    try:
        family = importlib.import_module("transformers.models.qwen2_vl.image_processing_pil_qwen2_vl")
    except ImportError as error:
        return (
            f"pictures need a newer transformers (pip install 'armllm[vision]'): {first_line(error)}",
            lambda _: {},
        )
    import PIL  # noqa: PLC0415 - an extra

    try:
        processor = family.Qwen2VLImageProcessorPil(**setup)
    except Exception as error:  # noqa: BLE001 - of values that come from a checkpoint
        return f"the image processor can't be made: {first_line(error)}", lambda _: {}

    def read(question: dict[str, Any]) -> dict[str, Any]:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                image = _open(question)
                area = image.width * image.height
                image = _resized(image, processor, family.smart_resize)
                result = processor(image, do_resize=False, return_tensors="np")
        except RequestError as error:
            return {"error": str(error)}
        except PIL.UnidentifiedImageError:
            return {"error": f"a picture can't be read: its format is none of {', '.join(FORMATS)}"}
        except MemoryError:
            return {"error": "a picture takes too much memory to read"}
        except Exception as error:  # noqa: BLE001 - whatever a broken file causes
            return {"error": f"a picture can't be read: {first_line(error)}"}
        _, height, width = (int(size) for size in result["image_grid_thw"][0])
        pixels = np.ascontiguousarray(result["pixel_values"], np.float32)
        data = base64.b64encode(pixels.tobytes()).decode()
        return {"pixels": data, "height": height, "width": width, "area": area}

    return "", read


def _resized(image: Any, processor: Any, smart_resize: Callable[..., tuple[int, int]]) -> Any:
    """As the processor would do it, which first copies all pixels several times."""
    if not processor.do_resize:
        return image
    height, width = smart_resize(
        image.height,
        image.width,
        factor=processor.patch_size * processor.merge_size,
        min_pixels=processor.size["shortest_edge"],
        max_pixels=processor.size["longest_edge"],
    )
    return image.resize((width, height), processor.resample)


def _open(question: dict[str, Any]) -> Any:
    """The picture in RGB."""
    from PIL import Image, ImageOps  # noqa: PLC0415 - an extra

    if "raw" in question:
        return Image.frombytes("RGB", tuple(question["size"]), base64.b64decode(question["raw"]))
    Image.MAX_IMAGE_PIXELS = None  # ours is a hard limit
    file = base64.b64decode(question["file"])
    _check_parts(file)
    image: Any = Image.open(io.BytesIO(file), formats=FORMATS)
    _check_pixels(image.width, image.height, question["most_pixels"])
    _check_runs(image, len(file))
    return _opaque(ImageOps.exif_transpose(image))


def _opaque(image: Any) -> Any:
    """The picture in RGB; what is transparent lies on white."""
    from PIL import Image  # noqa: PLC0415 - an extra

    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(white, image)
    return image.convert("RGB")


if __name__ == "__main__":
    answer_questions(_prepare, cpu_seconds=CPU_SECONDS, most_bytes=MEMORY)
