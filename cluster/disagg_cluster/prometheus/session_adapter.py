"""Connects `requests` with one deadline, and with our own TLS."""

from __future__ import annotations

import hashlib
import ssl
from typing import Any

from requests.adapters import HTTPAdapter

from disagg_cluster.prometheus.deadline_connection import POOLS
from disagg_exporter.http.tls_socket import DeadlineTlsSocket


class SessionAdapter(HTTPAdapter):
    """Connects with a deadline, and trusts what our own TLS context trusts, nothing else."""

    def __init__(self, context: ssl.SSLContext, server_name: str, pinned: bytes) -> None:
        context.sslsocket_class = DeadlineTlsSocket
        self._tls: dict[str, Any] = {"ssl_context": context}
        if server_name:
            self._tls["server_hostname"] = server_name
        if pinned:
            # OpenSSL would also accept a certificate signed by the pinned one.
            der = ssl.PEM_cert_to_DER_cert(pinned.decode("ascii"))
            self._tls["assert_fingerprint"] = hashlib.sha256(der).hexdigest()
        super().__init__()

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        """As in the base class, with our connections."""
        super().init_poolmanager(*args, **kwargs)
        self.poolmanager.pool_classes_by_scheme = dict(POOLS)

    def proxy_manager_for(self, proxy: str, **kwargs: Any) -> Any:
        """As in the base class, with our connections."""
        manager = super().proxy_manager_for(proxy, **kwargs)
        manager.pool_classes_by_scheme = dict(POOLS)
        return manager

    def build_connection_pool_key_attributes(
        self, request: Any, verify: Any, cert: Any = None
    ) -> tuple[Any, Any]:
        """As in the base class, with our TLS."""
        host, _ = super().build_connection_pool_key_attributes(request, verify, cert)
        return host, self._tls if host["scheme"] == "https" else {}

    def cert_verify(self, conn: Any, url: str, verify: Any, cert: Any) -> None:
        """Do nothing, as the context has all of it: `requests` would add other authorities."""
