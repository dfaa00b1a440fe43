"""The daemon's gRPC endpoint; without one in the node file, grpcio is not even imported."""

from __future__ import annotations

import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from disagg_cluster.config.control import GrpcConfig
from disagg_cluster.config.problems import Finding, config_error
from disagg_cluster.control.core import ControlCore
from disagg_cluster.host.run_dir.layout import RunFolder
from disagg_exporter.http.listen import open_listener
from disagg_exporter.model import CollectorStatus

if TYPE_CHECKING:
    from disagg_cluster.control.remote.token_file import TokenFile
    from disagg_cluster.control.remote.transport import GrpcTransport
    from disagg_cluster.nodefile.web.access import WebConfigWatch
    from disagg_exporter.http.server.authentication import Access

_WAY_OUT = "client_auth_type: RequireAndVerifyClientCert, or a token_file in the node file"
WEB_COLLECTOR = "control_web_config"


class RemoteControl:
    """Opens the endpoint that the node file configures and serves a core there.

    Args:
        config: The endpoint; None for none.
        folder: The run folder.
        log: Logs refused clients.
    """

    def __init__(self, config: GrpcConfig | None, folder: RunFolder, log: logging.Logger) -> None:
        self._config = config
        self._folder = folder
        self._log = log
        self._listener: socket.socket | None = None
        self._web: WebConfigWatch | None = None
        self._token: TokenFile | None = None
        self._transport: GrpcTransport | None = None

    @contextlib.contextmanager
    def prepared(self) -> Iterator[None]:
        """Listen on the port, if any, and load its access conditions; no requests are answered yet.

        Raises:
            ConfigError: The web-config or token file cannot be used, or does not protect the port.
            ListenError: The address cannot be listened on.
        """
        config = self._config
        if config is None or config.address is None:
            yield
            return
        from disagg_cluster.nodefile.web.access import WebConfigWatch

        assert config.web_config is not None, "the node file's checks"
        with contextlib.ExitStack() as stack:
            path = Path(config.web_config)
            self._web = web = WebConfigWatch(path, self._log, collector=WEB_COLLECTOR)
            self._token = protection(config, web.access, self._log)
            self._listener = open_listener(
                config.address, "`control: grpc: listen:` in the node file"
            )
            stack.callback(self._listener.close)
            stack.enter_context(web)
            yield

    @contextlib.asynccontextmanager
    async def serving(self, core: ControlCore) -> AsyncIterator[None]:
        """Answer requests until the block ends."""
        if self._config is None:
            yield
            return
        from disagg_cluster.control.remote.transport import GrpcTransport, NetworkEndpoint

        network = None
        if self._listener is not None and (web := self._web) is not None:
            network = NetworkEndpoint(self._listener, lambda: web.access, self._token)
        self._transport = GrpcTransport(self._folder, core, self._log, network)
        async with self._transport.serving():
            yield

    def reload(self) -> None:
        """Check the web-config file now rather than in a few seconds."""
        if self._web is not None:
            self._web.check_now()

    def collectors(self) -> tuple[CollectorStatus, ...]:
        """Status of the endpoint and of the files that protect it."""
        parts = (self._transport, self._web, self._token)
        return tuple(part.status() for part in parts if part is not None)


def protection(config: GrpcConfig, access: Access, log: logging.Logger) -> TokenFile | None:
    """The token required on the port; None if client certificates are enough.

    Raises:
        ConfigError: Neither is required, or the token cannot be used.
    """
    from disagg_cluster.control.remote.authentication import weakness
    from disagg_cluster.control.remote.token_file import TokenFile

    if why := weakness(access, has_token=config.token_file is not None):
        found = Finding(("tls_server_config",), f"too weak for control: {why}", _WAY_OUT)
        raise config_error([found], str(config.web_config))
    return None if config.token_file is None else TokenFile(Path(config.token_file), log)


def check_protection(config: GrpcConfig | None) -> None:
    """Check the files that protect the port; raises ConfigError if one cannot be used."""
    if config is None or config.web_config is None:
        return
    from disagg_cluster.nodefile.web.access import load

    protection(config, load(Path(config.web_config)), logging.getLogger("disagg_node"))
