"""Sigstore's services in this process: a certificate authority and a log with keys of their own.

They answer what Fulcio and Rekor answer, so that the library signs and verifies in full without network.
"""

import base64
import datetime as dt
import hashlib
import json
import struct
import time

import rfc8785
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID, ObjectIdentifier
from sigstore._internal.fulcio.client import FulcioCertificateSigningResponse
from sigstore._internal.rekor.client import RekorClient
from sigstore.models import TransparencyLogEntry, TrustedRoot

URL = "https://log.example"
TIMESTAMPS = ObjectIdentifier("1.3.6.1.4.1.11129.2.4.2")  # RFC 6962, 3.3
ISSUER = ObjectIdentifier("1.3.6.1.4.1.57264.1.1")  # Fulcio's docs/oid-info.md
SHA256_ECDSA = b"\x04\x03"


def new_key():
    return ec.generate_private_key(ec.SECP256R1())


def signature(key, data):
    return key.sign(data, ec.ECDSA(hashes.SHA256()))


def public(key):
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return key.public_key().public_bytes(serialization.Encoding.DER, form)


def key_id(key):
    return hashlib.sha256(public(key)).digest()


def vector(data, size):
    """A vector of RFC 8446, 3.4: its length in ``size`` bytes before it."""
    return len(data).to_bytes(size, "big") + data


class Authority:
    """Certificates for whoever brings a token; each is stated to be in a log of certificates."""

    def __init__(self):
        self.key, self.log_key = new_key(), new_key()
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test")])
        constraints = x509.BasicConstraints(ca=True, path_length=None)
        self.certificate = (
            self._builder(self.name, self.key.public_key(), days=1)
            .add_extension(constraints, critical=True)
            .add_extension(usage(certificates=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self.key.public_key()), critical=False)
            .sign(self.key, hashes.SHA256())
        )
        self.signing_cert = self

    def _builder(self, subject, public_key, *, days=0):
        now = dt.datetime.now(dt.timezone.utc)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self.name)
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(minutes=5, days=days))
            .not_valid_after(now + dt.timedelta(minutes=10, days=days))
        )

    def post(self, request, token):
        """Answer a signing request, as Fulcio's client does."""
        builder = (
            self._builder(x509.Name([]), request.public_key())
            .add_extension(
                x509.SubjectAlternativeName([x509.UniformResourceIdentifier(token.identity)]), critical=True
            )
            .add_extension(usage(certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CODE_SIGNING]), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), critical=False
            )
            .add_extension(x509.UnrecognizedExtension(ISSUER, token.issuer.encode()), critical=False)
        )
        draft = self._with_timestamps(builder, b"")
        return FulcioCertificateSigningResponse(
            self._with_timestamps(builder, self._timestamp(draft)), [self.certificate]
        )

    def _with_timestamps(self, builder, content):
        octets = vector(vector(content, 2), 2)
        wrapped = b"\x04" + (bytes([len(octets)]) if len(octets) < 128 else b"\x81" + bytes([len(octets)]))
        extension = x509.UnrecognizedExtension(TIMESTAMPS, wrapped + octets)
        return builder.add_extension(extension, critical=False).sign(self.key, hashes.SHA256())

    def _timestamp(self, certificate):
        """A signed timestamp of the certificate without its timestamps (RFC 6962, 3.2)."""
        moment = struct.pack("!Q", int(time.time() * 1000))
        entry = b"\0\1" + key_id(self.key) + vector(certificate.tbs_precertificate_bytes, 3)
        signed = signature(self.log_key, b"\0\0" + moment + entry + vector(b"", 2))
        return b"\0" + key_id(self.log_key) + moment + vector(b"", 2) + SHA256_ECDSA + vector(signed, 2)


def usage(*, certificates):
    names = (
        "content_commitment",
        "key_encipherment",
        "data_encipherment",
        "key_agreement",
        "crl_sign",
        "encipher_only",
        "decipher_only",
    )
    others = dict.fromkeys(names, False)
    return x509.KeyUsage(digital_signature=not certificates, key_cert_sign=certificates, **others)


class Log(RekorClient):
    """A log that has one entry: the last that was sent."""

    def __init__(self):
        super().__init__(URL)
        self.key = new_key()

    def create_entry(self, request):
        """Answer what is to be logged with the proof that it is, as Rekor's client does."""
        envelope = json.loads(request["spec"]["proposedContent"]["envelope"])
        (verifier,) = request["spec"]["proposedContent"]["verifiers"]
        payload = base64.b64decode(envelope["payload"])
        body = rfc8785.dumps(
            {
                "apiVersion": "0.0.1",
                "kind": "dsse",
                "spec": {
                    "envelopeHash": sha256(json.dumps(envelope).encode()),
                    "payloadHash": sha256(payload),
                    "signatures": [
                        {"signature": item["sig"], "verifier": verifier} for item in envelope["signatures"]
                    ],
                },
            }
        )
        return TransparencyLogEntry._from_v1_response({"0": self._entry(body)})

    def _entry(self, body):
        now, log_id = int(time.time()), key_id(self.key)
        root = hashlib.sha256(b"\0" + body).digest()
        note = f"{URL}\n1\n{base64.b64encode(root).decode()}\n"
        mark = base64.b64encode(log_id[:4] + signature(self.key, note.encode())).decode()
        text = base64.b64encode(body).decode()
        promised = {"body": text, "integratedTime": now, "logID": log_id.hex(), "logIndex": 0}
        promise = signature(self.key, rfc8785.dumps(promised))
        return {
            **promised,
            "verification": {
                "signedEntryTimestamp": base64.b64encode(promise).decode(),
                "inclusionProof": {
                    "logIndex": 0,
                    "rootHash": root.hex(),
                    "treeSize": 1,
                    "hashes": [],
                    "checkpoint": f"{note}\n\u2014 {URL.partition('//')[2]} {mark}\n",
                },
            },
        }


def sha256(data):
    return {"algorithm": "sha256", "value": hashlib.sha256(data).hexdigest()}


def trusted_root(folder, authority, log):
    """What a user trusts who trusts these services."""
    since = {"start": "2020-01-01T00:00:00Z"}

    def instance(key):
        return {
            "baseUrl": URL,
            "hashAlgorithm": "SHA2_256",
            "publicKey": {
                "rawBytes": base64.b64encode(public(key)).decode(),
                "keyDetails": "PKIX_ECDSA_P256_SHA_256",
                "validFor": since,
            },
            "logId": {"keyId": base64.b64encode(key_id(key)).decode()},
        }

    certificate = authority.certificate.public_bytes(serialization.Encoding.DER)
    document = {
        "mediaType": "application/vnd.dev.sigstore.trustedroot+json;version=0.1",
        "tlogs": [instance(log.key)],
        "ctlogs": [instance(authority.log_key)],
        "certificateAuthorities": [
            {
                "subject": {"organization": "test", "commonName": "test"},
                "uri": URL,
                "certChain": {"certificates": [{"rawBytes": base64.b64encode(certificate).decode()}]},
                "validFor": since,
            }
        ],
        "timestampAuthorities": [],
    }
    path = folder / "trusted_root.json"
    path.write_text(json.dumps(document))
    return TrustedRoot.from_file(str(path))
