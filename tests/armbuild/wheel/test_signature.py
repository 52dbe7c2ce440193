import base64
import json
import sys
import time

import pytest
from sigstore import models, oidc, verify
from sigstore._internal import tuf

from armbuild.errors import CheckFailed, MissingError
from armbuild.wheel import signature

STATEMENT = {
    "_type": "https://in-toto.io/Statement/v1",
    "subject": [{"name": "x.whl", "digest": {"sha256": "0" * 64}}],
    "predicateType": "https://slsa.dev/provenance/v1",
    "predicate": {},
}


@pytest.fixture
def nowhere(monkeypatch, tmp_path):
    """No CI, no home with fetched keys."""
    for name in ("GITHUB_ACTIONS", "GITLAB_CI", "BUILDKITE", "CIRCLECI", "SIGSTORE_ID_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def token(**changes):
    """An OIDC token whose signature nobody checks here: that is the certificate authority's part."""
    now = int(time.time())
    claims = {"iss": "https://ci.example", "sub": "me", "aud": "sigstore", "iat": now, "exp": now + 600}
    parts = [{"alg": "RS256", "typ": "JWT"}, claims | changes]
    encoded = [base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in parts]
    return ".".join([*encoded, "c2ln"])


@pytest.mark.usefixtures("nowhere")
def test_a_machine_without_an_identity_is_told_what_gives_one(monkeypatch):
    with pytest.raises(MissingError, match="id-token: write"):
        signature.identity()
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    with pytest.raises(MissingError, match=r"no identity to sign with: GitHub: missing .*permissions"):
        signature.identity()


@pytest.mark.usefixtures("nowhere")
def test_the_jobs_token_is_the_identity_while_it_lasts(monkeypatch):
    monkeypatch.setenv("GITLAB_CI", "true")
    monkeypatch.setenv("SIGSTORE_ID_TOKEN", token())
    assert signature.identity().identity == "me"
    for wrong, reason in (
        (token(exp=1), "Identity token is malformed"),
        (token(aud="another"), "audience claim mismatch"),
        ("no token", "no identity to sign with: "),
    ):
        monkeypatch.setenv("SIGSTORE_ID_TOKEN", wrong)
        with pytest.raises(MissingError, match=reason):
            signature.identity()


def test_services_that_cannot_be_reached_are_missing(nowhere, monkeypatch):
    def unreachable(*_args, **_kwargs):
        raise tuf.TUFExceptions.DownloadError("no network")

    monkeypatch.setattr(tuf.Updater, "refresh", unreachable)
    with pytest.raises(MissingError, match="sigstore's services do not sign: Failed to refresh TUF metadata"):
        signature.sign(json.dumps(STATEMENT).encode(), oidc.IdentityToken(token()))
    assert not list(nowhere.rglob("*.sigstore.json"))


@pytest.mark.usefixtures("nowhere")
@pytest.mark.parametrize("text", [b"", b"{}", b"[]", b'{"mediaType": "application/x"}'])
def test_what_is_no_bundle_does_not_hold(text):
    with pytest.raises(CheckFailed, match="failed to load bundle"):
        signature.signed_statement(text, signer="me", issuer="https://ci.example")


@pytest.mark.usefixtures("nowhere")
def test_only_an_in_toto_statement_counts(monkeypatch):
    monkeypatch.setattr(models.Bundle, "from_json", lambda _text: None)
    said = iter([("text/plain", b"x"), (signature.IN_TOTO, b"{}")])
    monkeypatch.setattr(verify.Verifier, "verify_dsse", lambda *_: next(said))
    with pytest.raises(CheckFailed, match="it signs text/plain"):
        signature.signed_statement(b"", signer="me", issuer="https://ci.example")
    assert signature.signed_statement(b"", signer="me", issuer="https://ci.example") == b"{}"


def test_without_the_package_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "sigstore", None)
    with pytest.raises(MissingError, match=r"sigstore is not installed: pip install 'armllm\[sign\]'"):
        signature.identity()
