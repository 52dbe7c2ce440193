from __future__ import annotations

import json
import sys
from pathlib import Path  # noqa: TC003 - typer reads the annotations
from typing import Annotated

import typer

from armbuild.cli.options import AsJson, Traceback, colored
from armbuild.cli.progress import Progress
from armbuild.errors import UsageError, one_line


def register(app: typer.Typer) -> None:
    """Add ``armbuild verify`` and ``armbuild sign`` to the command line."""
    app.command("verify")(verify_command)
    app.command("sign")(sign_command)


def verify_command(  # noqa: PLR0917 - the options of the command line
    paths: Annotated[list[Path], typer.Argument(metavar="WHEEL|IMAGE", help="Wheels or OCI archives.")],
    provenance: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The provenance file, which must exist; default: the one beside the wheel, if any.",
        ),
    ] = None,
    cert_identity: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="The identity that must have signed, such as the URL of a workflow."
        ),
    ] = None,
    cert_oidc_issuer: Annotated[
        str | None, typer.Option(metavar="URL", help="The issuer of that identity.")
    ] = None,
    as_json: AsJson = False,
    verbose: Traceback = False,  # noqa: ARG001
) -> int:
    """Compare wheels and images with their documents: RECORD, bill of materials, provenance, labels.

    An image must have the files of the wheels that are named beside it. A document that is not there is not
    checked. --provenance and --cert-identity require one.
    """
    from armbuild import verify  # noqa: PLC0415 - heavy modules load when the command runs

    if provenance and len(paths) > 1:
        raise UsageError("--provenance FILE is of one wheel or image: name only that")
    if (cert_identity is None) != (cert_oidc_issuer is None):
        raise UsageError("--cert-identity and --cert-oidc-issuer go together")
    signer = None
    if cert_identity and cert_oidc_issuer:
        signer = verify.Signer(identity=cert_identity, issuer=cert_oidc_issuer)
    wheels = [path for path in paths if path.suffix == ".whl"]
    documents = []
    for path in paths:
        checks = verify.check(path, statement=provenance, signer=signer, wheels=wheels)
        ok = all(check.ok is not False for check in checks)
        documents.append({"path": str(path), "ok": ok, "checks": [check.as_dict() for check in checks]})
        if not (as_json or (Progress.quiet and ok)):
            verdict = f"{one_line(str(path))}: {'passed' if ok else 'FAILED'}"
            print("\n".join([colored(verdict, sys.stdout), *map(str, checks)]), flush=True)
    passed = all(document["ok"] for document in documents)
    if as_json:
        print(json.dumps({"schema": 1, "ok": passed, "files": documents}, indent=2))
    return 0 if passed else 1


def sign_command(
    wheels: Annotated[
        list[Path], typer.Argument(metavar="WHEEL", help="Wheels with a provenance file beside them.")
    ],
    *,
    verbose: Traceback = False,  # noqa: ARG001
) -> int:
    """Sign the provenance beside each wheel with the identity of this CI job, for `armbuild verify`.

    The identity and the signature are logged in public, by sigstore. Sign in a job that builds nothing:
    a build runs the project's code, which must not get at the identity.
    """
    from armbuild import verify  # noqa: PLC0415 - heavy modules load when the command runs
    from armbuild.errors import CheckFailed  # noqa: PLC0415
    from armbuild.host import cache, outputs  # noqa: PLC0415
    from armbuild.wheel import provenance, signature  # noqa: PLC0415

    identity = signature.identity()
    for path in wheels:
        statement = path.with_name(path.name + provenance.SUFFIX)
        checks = verify.check(path, statement=statement)
        if wrong := next((check for check in checks if check.ok is False), None):
            raise CheckFailed(f"{path}: not signed: {wrong.part}: {wrong.text}")
        bundle = signature.sign(statement.read_bytes(), identity)
        with cache.work_folder("sign") as work:
            (work / (path.name + signature.SUFFIX)).write_text(bundle)
            print(outputs.move_into(work / (path.name + signature.SUFFIX), path.parent))
    return 0
