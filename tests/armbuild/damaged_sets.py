"""A wheel and an image with all that is said of them, one file of which is not what it was."""

import contextlib
import functools
import io
import json
import os
import tempfile
from pathlib import Path
from unittest import mock

from sigstore import dsse
from sigstore.sign import SigningContext
from sigstore.verify import Verifier
from tests.armbuild.attested import SIGNER, beside, built_wheel, image, restate, rewrite
from tests.armbuild.damage import damaged, written
from tests.armbuild.damaged_documents import Token
from tests.armbuild.wheel import sigstore_services

from armbuild.cli import main
from armbuild.host import cache
from armbuild.image import reader
from armbuild.wheel import provenance, signature

HUGE = 1 << 42
"""Bytes of a file that takes no place on the disk."""


def image_statement(path):
    """Write what `armbuild docker` says of an archive, as far as it is compared."""
    with reader.open_image(path) as opened:
        digests = [manifest.digest for manifest in opened.manifests()]
    bill = ("pkg:deb/libc6", "pkg:pypi/torch")
    statement = {
        "_type": provenance.STATEMENT, "predicateType": provenance.PREDICATE,
        "subject": [
            {"name": path.name, "digest": {"sha256": cache.sha256(path)}},
            *({"name": "x", "digest": {"sha256": digest.partition(":")[2]}} for digest in digests),
        ],
        "predicate": {"buildDefinition": {"resolvedDependencies": [{"uri": one} for one in bill]}},
    }  # fmt: skip
    return written(beside(path), json.dumps(statement).encode())


@functools.cache
def whole():
    """Return two sets of files by name, each of a wheel and of an image, and who trusts their signatures."""
    authority, log = sigstore_services.Authority(), sigstore_services.Log()
    sets = []
    with tempfile.TemporaryDirectory() as place:
        root = sigstore_services.trusted_root(Path(place), authority, log)
        context = SigningContext(fulcio=authority, rekor=log, trusted_root=root)
        for name in ("one", "other"):
            (folder := Path(place) / name).mkdir()
            wheel = built_wheel(folder)
            if name == "other":
                rewrite(wheel, "demo/__init__.py", lambda _: b"other = 1\n")
                restate(wheel)
            with context.signer(Token()) as session:
                bundle = session.sign_dsse(dsse.Statement(beside(wheel).read_bytes())).to_json()
            archive = image(folder, labels={"org.opencontainers.image.version": name})
            files = [wheel, beside(wheel), archive, image_statement(archive)]
            content = {file.name: file.read_bytes() for file in files}
            sets.append({**content, wheel.name + signature.SUFFIX: bundle.encode()})
    return *sets, Verifier(trusted_root=root)


def put(random, path, content, others):
    """Lay something else in the place of ``content``, or ``content`` with something done to it."""
    match random.randrange(10):
        case 0:
            path.unlink()
        case 1:
            path.unlink()
            path.symlink_to(random.choice((path.name, "gone", ".", "/dev/zero", "/dev/full", path.parent)))
        case 2:
            path.unlink()
            random.choice((path.mkdir, lambda: os.mkfifo(path)))()
        case 3:
            path.write_bytes(random.choice(others))
        case 4:
            size = len(content)
            with path.open("r+b") as file:
                if random.random() < 0.5:  # it ends as it did
                    file.seek(HUGE - size)
                    file.write(content)
                file.truncate(HUGE)
        case 5:
            path.chmod(0)  # not for root
        case _:
            path.write_bytes(damaged(random, content))


def same(path, content):
    """Return whether ``path`` is a file of this content."""
    try:
        return path.stat().st_size == len(content) and path.read_bytes() == content
    except OSError:
        return False


def verified_files(random, folder):
    """What `armbuild verify` says when one file of several is not what it was: nothing changed may pass."""
    files, others, verifier = whole()
    (folder := folder / "set").mkdir()
    for name, content in files.items():
        written(folder / name, content)
    changed = folder / random.choice(list(files))
    put(random, changed, files[changed.name], list(others.values()) + list(files.values()))
    wheel, archive = (next(name for name in files if name.endswith(end)) for end in (".whl", ".tar"))
    signed = ["--cert-identity", SIGNER.identity, "--cert-oidc-issuer", SIGNER.issuer]
    suffix = provenance.SUFFIX
    for name, arguments in (
        (wheel, ["--provenance", str(folder / (wheel + suffix)), *signed]),
        (archive, ["--provenance", str(folder / (archive + suffix))]),
    ):
        out, error = io.StringIO(), io.StringIO()
        with (
            mock.patch.object(Verifier, "production", return_value=verifier),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(error),
        ):
            status = main(["verify", str(folder / name), *arguments])
        assert status in (0, 1, 2, 3), error.getvalue()
        assert len(error.getvalue().splitlines()) <= 2
        assert (status == 0) == out.getvalue().startswith(f"{folder / name}: passed")
        needed = [name] if name == archive else [name, name + suffix]  # nobody signs an image's statement
        if status == 0:
            assert all(same(folder / one, files[one]) for one in needed), changed.name


PARSERS = (verified_files,)
