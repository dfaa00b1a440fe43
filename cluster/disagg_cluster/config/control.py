"""How a running daemon can be queried and controlled, besides its socket in the run folder."""

from __future__ import annotations

from pydantic import ConfigDict, Field

from disagg_cluster.config.values import AddressText, PathText, Section
from disagg_exporter.http.listen import ListenAddress, parse_listen


class GrpcConfig(Section):
    """Control requests over gRPC: on a Unix socket, and on a port if `listen` is set."""

    model_config = ConfigDict(title="Grpc")

    listen: AddressText | None = Field(
        default=None, description='an address such as "0.0.0.0:9849"'
    )
    web_config: PathText | None = Field(
        default=None, description="the path of a Prometheus web-config file with TLS"
    )
    token_file: PathText | None = Field(
        default=None, description="the path of a file with a token of 32 characters or more"
    )

    @property
    def address(self) -> ListenAddress | None:
        """The address for other hosts; None without one."""
        return None if self.listen is None else parse_listen(self.listen)


class Control(Section):
    """Remote control of the workers of this node."""

    grpc: GrpcConfig | None = None
