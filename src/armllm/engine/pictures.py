"""Pictures in prompts: which tokens stand for them, and where those are."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
import torch

from armllm.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Sequence as Sequences

    import numpy.typing as npt
    from torch import Tensor

    from armllm.checkpoint.config import PictureConfig
    from armllm.pictures import Patches


@dataclasses.dataclass(eq=False, slots=True)
class Picture:
    """A picture in a prompt, whose tokens are those from ``first`` to ``end``.

    height, width: in patches. pixels: until ``states``, which the tokens are for the model, are computed from
    them; these are kept as long as the request may need them again.
    """

    first: int
    end: int
    height: int
    width: int
    digest: int
    pixels: Tensor | None
    states: Tensor | None = None


@dataclasses.dataclass(eq=False, slots=True)
class Pictures:
    """The pictures of a prompt. The sequences of a request share them.

    positions: int64 ``[3, end]``, time, row and column of all tokens up to the end of the last picture. Those
    behind stand ``shift`` from their number.
    """

    pictures: list[Picture]
    positions: npt.NDArray[np.int64]
    shift: int

    @property
    def end(self) -> int:
        """Where the last one ends."""
        return int(self.positions.shape[1])

    def within(self, first: int, end: int) -> list[Picture]:
        """Those that have one of the tokens from ``first`` to ``end``."""
        return [one for one in self.pictures if one.first < end and first < one.end]

    def places(self, first: int, end: int) -> npt.NDArray[np.int64]:
        """Positions ``[3, end - first]`` of these tokens."""
        behind = np.arange(max(first, self.end), max(end, self.end)) + self.shift
        return np.concatenate((self.positions[:, first:end], np.tile(behind, (3, 1))), axis=1)


def place_pictures(
    token_ids: list[int], found: Sequences[Patches], config: PictureConfig, max_model_len: int
) -> tuple[list[int], Pictures]:
    """The prompt with as many tokens for each picture as it has squares of patches, and their places.

    RequestError if there is not one token that stands for a picture for each of them.
    """
    marks = token_ids.count(config.token_id)
    if marks != len(found):
        raise RequestError(
            f"the prompt has {marks} places for pictures (token {config.token_id}), and {len(found)} pictures"
            " come with it"
        )
    merge, token_id = config.merge_size, config.token_id
    total = len(token_ids) + sum(one.height * one.width // merge**2 - 1 for one in found)
    if total >= max_model_len:
        raise RequestError(
            f"the prompt has {total} tokens with its pictures; with at least one of output that is more than"
            f" the model's max_model_len {max_model_len}"
        )
    pictures: list[Picture] = []
    expanded: list[int] = []
    parts: list[npt.NDArray[np.int64]] = []
    position = start = 0
    for one in found:
        mark = token_ids.index(token_id, start)
        text = token_ids[start:mark]
        parts.append(np.tile(np.arange(position, position + len(text)), (3, 1)))
        position += len(text)
        rows, columns = one.height // merge, one.width // merge
        grid = np.stack((np.zeros((rows, columns), np.int64), *np.indices((rows, columns)))).reshape(3, -1)
        parts.append(grid + position)
        position += max(rows, columns)
        expanded += text
        first = len(expanded)
        expanded += [token_id] * (rows * columns)
        pixels = torch.from_numpy(one.pixels)
        pictures.append(Picture(first, len(expanded), one.height, one.width, one.digest, pixels))
        start = mark + 1
    placed = Pictures(pictures, np.concatenate(parts, axis=1), position - len(expanded))
    return expanded + token_ids[start:], placed
