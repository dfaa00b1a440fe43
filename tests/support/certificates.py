"""Certificates for a server on the loopback and for its clients, made for one test session."""

from __future__ import annotations

import functools
import ssl
from collections.abc import Mapping
from pathlib import Path

import trustme


@functools.cache
def authority() -> trustme.CA:
    """Return the authority that signs all certificates."""
    return trustme.CA()


@functools.cache
def server_certificate(name: str = "localhost") -> trustme.LeafCert:
    """Return a certificate for the loopback; each name has another, with its own key."""
    return authority().issue_cert(name, "127.0.0.1")


def server_context() -> ssl.SSLContext:
    """Return the context of a server."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_certificate().configure_cert(context)
    return context


def client_context(*names: str) -> ssl.SSLContext:
    """Return the context of a client that trusts the authority; `names` give it a certificate."""
    context = ssl.create_default_context()
    authority().configure_trust(context)
    if names:
        authority().issue_cert(*names).configure_cert(context)
    return context


def write_files(folder: Path, texts: Mapping[str, str] | None = None) -> None:
    """Write `cert.pem`, `key.pem`, `other-key.pem`, `ca.pem` and further texts into a folder."""
    server, other = server_certificate(), server_certificate("other")
    (folder / "cert.pem").write_bytes(b"".join(blob.bytes() for blob in server.cert_chain_pems))
    (folder / "key.pem").write_bytes(server.private_key_pem.bytes())
    (folder / "other-cert.pem").write_bytes(b"".join(b.bytes() for b in other.cert_chain_pems))
    (folder / "other-key.pem").write_bytes(other.private_key_pem.bytes())
    (folder / "ca.pem").write_bytes(authority().cert_pem.bytes())
    for name, text in (texts or {}).items():
        (folder / name).write_text(text, encoding="utf-8")
