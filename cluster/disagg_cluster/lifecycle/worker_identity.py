"""By what command and as what a worker's process was started."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import Field

from disagg_cluster.config.values import AnyText, HostAddress, Section, root_url
from disagg_exporter.model import Role

_MOST_RANKS = 65_536


class WorkerIdentity(Section):
    """As what a process was started: it stays true when the node file says something else."""

    role: Role = Role.UNKNOWN
    gpus: tuple[str, ...] = ()
    model_name: str = ""
    host: HostAddress = "127.0.0.1"
    port: int = Field(default=0, ge=0, le=65535)
    ranks: int = Field(default=1, ge=1, le=_MOST_RANKS)
    certificate_file: AnyText | None = None

    @property
    def url(self) -> str:
        """The root of its server."""
        return root_url(self.host, self.port, tls=self.certificate_file is not None)


@dataclass(frozen=True, slots=True)
class LaunchCommand:
    """How to start a process: its arguments and what its environment has beside the inherited."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
