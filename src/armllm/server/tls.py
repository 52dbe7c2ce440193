"""HTTPS: the files of TLS, read before a model is loaded."""

from __future__ import annotations

import os
import ssl
from pathlib import Path

from armllm.errors import RequestError


def tls_context(
    *,
    ssl_certfile: str | None = None,
    ssl_keyfile: str | None = None,
    ssl_ca_certs: str | None = None,
    ssl_cert_reqs: int = ssl.CERT_NONE,
    ssl_ciphers: str | None = None,
) -> ssl.SSLContext | None:
    """What a server speaks TLS with, None if nothing is given; RequestError says which option is wrong."""
    if ssl_certfile is None:
        if ssl_keyfile or ssl_ca_certs or ssl_cert_reqs or ssl_ciphers:
            raise RequestError("TLS needs --ssl-certfile")
        return None
    if ssl_cert_reqs and ssl_ca_certs is None:
        raise RequestError(f"--ssl-cert-reqs {ssl_cert_reqs} needs --ssl-ca-certs: who signs certificates?")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _load_certificate(context, ssl_certfile, ssl_keyfile)
    try:
        context.verify_mode = ssl.VerifyMode(ssl_cert_reqs)
    except ValueError:
        raise RequestError(f"--ssl-cert-reqs must be 0, 1 or 2, not {ssl_cert_reqs}") from None
    if ssl_ca_certs is not None:
        _check_readable("--ssl-ca-certs", ssl_ca_certs)
        try:
            context.load_verify_locations(ssl_ca_certs)
        except ssl.SSLError:
            raise RequestError(f"--ssl-ca-certs {ssl_ca_certs}: it has no certificate in PEM form") from None
    if ssl_ciphers is not None:
        try:
            context.set_ciphers(ssl_ciphers)
        except ssl.SSLError:
            raise RequestError(f"--ssl-ciphers {ssl_ciphers!r}: OpenSSL knows none of them") from None
    return context


def _load_certificate(context: ssl.SSLContext, certificate: str, key: str | None) -> None:
    _check_readable("--ssl-certfile", certificate)
    where = f"--ssl-certfile {certificate}"
    if key is not None:
        _check_readable("--ssl-keyfile", key)
        where = f"--ssl-keyfile {key}"

    def refuse() -> str:  # without this, OpenSSL asks at the terminal
        raise RequestError(f"{where}: the key is encrypted; `openssl pkey -in FILE` writes it without")

    try:
        context.load_cert_chain(certificate, key, password=refuse)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            reason = f"the key is not that of the certificate {certificate}"
        elif _has(certificate, "CERTIFICATE-----"):
            reason = "it has no private key in PEM form" if not _has(key or certificate, "KEY-----") else ""
        else:
            where, reason = f"--ssl-certfile {certificate}", "it has no certificate in PEM form"
        raise RequestError(f"{where}: {reason or error.reason or error}") from None


def _has(path: str, mark: str) -> bool:
    return mark.encode() in Path(path).read_bytes()


def _check_readable(option: str, path: str) -> None:
    try:
        with Path(path).open("rb") as file:
            os.read(file.fileno(), 1)
    except OSError as error:
        raise RequestError(f"{option} {path}: {error.strerror}") from None
