import base64
import json
import sys
import time

import pytest
from sigstore import models, oidc
from sigstore._internal import tuf
from sigstore.sign import SigningContext
from sigstore.verify import Verifier
from tests.armbuild.wheel import sigstore_services

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
def test_a_machine_without_an_identity_learns_what_gives_one(monkeypatch):
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


@pytest.fixture
def services(nowhere, monkeypatch):
    """Sigstore's own code for signing and verifying, with services in this process."""
    authority, log = sigstore_services.Authority(), sigstore_services.Log()
    root = sigstore_services.trusted_root(nowhere, authority, log)
    context = SigningContext(fulcio=authority, rekor=log, trusted_root=root)
    monkeypatch.setattr(models.ClientTrustConfig, "production", lambda: None)
    monkeypatch.setattr(SigningContext, "from_trust_config", lambda _config: context)
    monkeypatch.setattr(Verifier, "production", lambda *, offline: Verifier(trusted_root=root))
    return authority


WORKFLOW = "https://ci.example/workflow"
CALLER = {"signer": WORKFLOW, "issuer": "https://ci.example"}


@pytest.fixture
def bundle(services):
    return signature.sign(json.dumps(STATEMENT).encode(), oidc.IdentityToken(token(sub=WORKFLOW))).encode()


def test_what_was_signed_comes_back_for_the_identity_that_signed(bundle):
    assert json.loads(signature.signed_statement(bundle, **CALLER)) == STATEMENT


@pytest.mark.parametrize(
    ("caller", "reason"),
    [
        ({"signer": "https://ci.example/another"}, "SANs do not match"),
        ({"issuer": "https://another.example"}, "does not match"),
    ],
)
def test_another_identity_or_issuer_does_not_hold(bundle, caller, reason):
    with pytest.raises(CheckFailed, match=reason):
        signature.signed_statement(bundle, **CALLER | caller)


def test_a_changed_statement_or_signature_does_not_hold(bundle):
    other = base64.b64encode(json.dumps(STATEMENT | {"subject": []}).encode()).decode()
    for key, value in (("payload", other), ("payloadType", "text/plain")):
        said = json.loads(bundle)
        said["dsseEnvelope"][key] = value
        with pytest.raises(CheckFailed, match="invalid signature"):
            signature.signed_statement(json.dumps(said).encode(), **CALLER)
    said = json.loads(bundle)
    said["verificationMaterial"]["tlogEntries"][0]["integratedTime"] = "1700000000"
    with pytest.raises(CheckFailed):
        signature.signed_statement(json.dumps(said).encode(), **CALLER)


def test_a_signature_of_services_that_are_not_trusted_does_not_hold(bundle, nowhere, monkeypatch):
    own = sigstore_services.trusted_root(nowhere, sigstore_services.Authority(), sigstore_services.Log())
    monkeypatch.setattr(Verifier, "production", lambda *, offline: Verifier(trusted_root=own))
    with pytest.raises(CheckFailed, match="certificate chain"):
        signature.signed_statement(bundle, **CALLER)


def test_the_keys_that_the_package_carries_do_not_trust_them(bundle, nowhere, monkeypatch):
    monkeypatch.undo()
    monkeypatch.setenv("HOME", str(nowhere))
    with pytest.raises(CheckFailed, match="certificate chain"):
        signature.signed_statement(bundle, **CALLER)


@pytest.mark.usefixtures("services")
def test_only_an_in_toto_statement_counts(monkeypatch):
    monkeypatch.setattr(Verifier, "verify_dsse", lambda *_: ("text/plain", b"x"))
    monkeypatch.setattr(models.Bundle, "from_json", lambda _text: None)
    with pytest.raises(CheckFailed, match="it signs text/plain"):
        signature.signed_statement(b"", **CALLER)


def test_an_identity_that_expires_meanwhile_is_missing(services, monkeypatch):
    identity = oidc.IdentityToken(token())
    monkeypatch.setattr(identity, "in_validity_period", lambda: False)
    with pytest.raises(MissingError, match="expired while it signed"):
        signature.sign(json.dumps(STATEMENT).encode(), identity)


def test_without_the_package_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "sigstore", None)
    with pytest.raises(MissingError, match=r"sigstore is not installed: pip install 'armllm\[sign\]'"):
        signature.identity()
