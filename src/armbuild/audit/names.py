"""Names of an archive's files: which lead out of their folder, and which mean one place on some systems."""

from __future__ import annotations

import unicodedata

from armbuild.artifact.limits import MAX_DEPTH
from armbuild.errors import one_line


def refusal(name: str) -> str:
    """Return why no file may have this name in a wheel, empty where it may.

    It could be written outside of its folder, or over another file: so could another name of the same place
    (``./a``, ``b//c``). One that a terminal or a page shows as another is refused, too.
    """
    parts = name.removesuffix("/").split("/")
    if len(parts) > MAX_DEPTH:
        return f"lies in more than {MAX_DEPTH} folders"
    if (
        not {"", ".", ".."}.isdisjoint(parts)
        or one_line(name) != name
        or "\\" in name
        or (len(name) > 1 and name[1] == ":")
    ):
        return "the name leads out of the folder that it is unpacked to, or is not what it seems"
    return ""


def place(name: str) -> str:
    """Return where macOS, Windows or a volume that ignores case would write a file of this name.

    They match names without case and in a normal form (Unicode 15, D145; ext4 so by a flag of the folder),
    HFS+ without characters that nobody sees; Windows drops dots and spaces at the end of a part, and what
    follows a colon.
    """
    if name.isascii():
        folded = name.lower()
    else:
        folded = unicodedata.normalize("NFD", unicodedata.normalize("NFD", name).casefold())
        folded = "".join(letter for letter in folded if unicodedata.category(letter) != "Cf")
    if ":" not in folded and ". " not in folded and "./" not in folded and " /" not in folded:
        return folded.rstrip(". ")
    return "/".join(part.partition(":")[0].rstrip(". ") for part in folded.split("/"))


class Places:
    """The places that the files of one archive take."""

    def __init__(self) -> None:
        self._files: dict[str, str] = {}
        self._folders: dict[str, str] = {}

    def clash(self, name: str) -> str:
        """Add a file; return the name of another that some systems write to the same place, else nothing."""
        own = place(name)
        if other := self._files.get(own) or self._folders.get(own):
            return other
        self._files[own] = name
        folder = own.rpartition("/")[0]
        while folder and folder not in self._folders:
            if other := self._files.get(folder):
                return other
            self._folders[folder] = name
            folder = folder.rpartition("/")[0]
        return ""
