"""Who says where a wheel came from: its provenance, signed with an identity of CI and logged in public.

Sigstore's bundle format (protobuf-specs, sigstore_bundle.proto): a DSSE envelope around the in-toto
statement, a certificate that lives for minutes and names the identity, an entry in the transparency log.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from armbuild.errors import CheckFailed, MissingError, packages_of

if TYPE_CHECKING:
    from sigstore.oidc import IdentityToken

SUFFIX = ".sigstore.json"
IN_TOTO = "application/vnd.in-toto+json"


def identity() -> IdentityToken:
    """Return the identity that this machine may sign with; raises MissingError where there is none."""
    with packages_of("sign"):
        from sigstore import oidc  # noqa: PLC0415 - 0.3 s
    try:
        token = oidc.detect_credential()
        if token is None:
            raise MissingError(
                "no identity to sign with: a job of GitHub Actions needs `permissions: id-token: write`,"
                " one of GitLab an id_tokens entry SIGSTORE_ID_TOKEN with the audience sigstore"
            )
        return oidc.IdentityToken(token)
    except oidc.IdentityError as error:
        raise MissingError(f"no identity to sign with: {error}") from error


def sign(statement: bytes, signer: IdentityToken) -> str:
    """Return the bundle (JSON) that signs an in-toto ``statement``.

    It asks sigstore's public services for a certificate and a log entry: raises MissingError when these
    cannot be reached or say no.
    """
    with packages_of("sign"):
        import requests  # noqa: PLC0415
        from sigstore import dsse, errors  # noqa: PLC0415
        from sigstore.models import ClientTrustConfig  # noqa: PLC0415
        from sigstore.oidc import ExpiredIdentity  # noqa: PLC0415
        from sigstore.sign import SigningContext  # noqa: PLC0415
    try:
        context = SigningContext.from_trust_config(ClientTrustConfig.production())
        with context.signer(signer) as session:
            return session.sign_dsse(dsse.Statement(statement)).to_json()
    except ExpiredIdentity as error:
        raise MissingError("the identity expired while it signed: run the job again") from error
    except (errors.Error, requests.RequestException) as error:
        raise MissingError(f"sigstore's services do not sign: {error}") from error


def signed_statement(bundle: bytes, *, signer: str, issuer: str) -> bytes:
    """Return the in-toto statement that a bundle signs.

    ``signer`` (a workflow's URL, an e-mail address) and ``issuer`` (who vouches for it) must be those of the
    certificate. The trusted keys are those that sigstore's package carries or has fetched: no network. Raises
    CheckFailed with the reason when the bundle does not hold.
    """
    with packages_of("sign"):
        from sigstore import errors  # noqa: PLC0415
        from sigstore.models import Bundle  # noqa: PLC0415
        from sigstore.verify import Verifier, policy  # noqa: PLC0415
    logging.getLogger("sigstore").setLevel(logging.ERROR)  # it warns of working without network
    try:
        wanted = policy.Identity(identity=signer, issuer=issuer)
        kind, payload = Verifier.production(offline=True).verify_dsse(Bundle.from_json(bundle), wanted)
    except (errors.Error, ValueError) as error:
        raise CheckFailed(str(error)) from error
    if kind != IN_TOTO:
        raise CheckFailed(f"it signs {kind}, not an in-toto statement")
    return payload
