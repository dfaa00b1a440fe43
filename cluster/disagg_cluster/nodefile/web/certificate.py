"""What a web-config file tells the clients of its own node: the certificate to expect."""

from __future__ import annotations

import re
import ssl
from pathlib import Path

from disagg_cluster.config.problems import Finding, config_error
from disagg_cluster.nodefile.web.reading import read, understand

_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)


def certificate(path: Path) -> bytes | None:
    """The server's own certificate, in PEM; None where it speaks no TLS.

    A file that its server could not use is understood as far as it can be.

    Raises:
        ConfigError: The file or the certificate cannot be read.
    """
    files = read(path)
    config, _, lines = understand(files)
    tls = config.tls_server_config
    if tls is None:
        return None
    told = files.named.get("cert_file", (tls.cert or "").encode())
    # The first of a chain is the server's; those after it are of who signed it.
    first = _CERTIFICATE.search(told) if isinstance(told, bytes) else None
    if first is None or not _is_sound(first[0]):
        why = f"cannot be read: {told}" if isinstance(told, str) else "no certificate in PEM"
        raise config_error([Finding(("tls_server_config", "cert_file"), why)], str(path), lines)
    return first[0]


def _is_sound(pem: bytes) -> bool:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=pem.decode("ascii"))
    except (ssl.SSLError, UnicodeDecodeError):
        return False
    return True
