"""The nouns of Kubernetes as far as we need them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from disagg_exporter.devices.pod_resources.wire import GpuHolder

__all__ = ["Container", "GpuHolder", "Pod"]

FINISHED_PHASES = ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class Container:
    """One container of a pod, as its manifest declares it.

    `argv` is command and args; without a command the image's own program comes first, which
    nobody tells us. `env` has the values of variables on the list of what we read, and only
    those written down in the manifest. Both may hold secrets all the same: they are for the
    finding of roles, are never shown, and are not in the repr. `tls_ports` are those at which its
    manifest has it speak HTTPS.
    """

    name: str
    image: str = ""
    argv: tuple[str, ...] = field(default=(), repr=False)
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    ports: tuple[int, ...] = ()
    tls_ports: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Pod:
    """One pod of this node, cut to what we use.

    `uid` is its identity: a pod of a StatefulSet comes back under the same name with another.
    `annotations` are those of disagg-node only. `deleted` says that it is on its way out.
    """

    uid: str
    name: str
    namespace: str
    node: str = ""
    labels: Mapping[str, str] = field(default_factory=dict, repr=False)
    annotations: Mapping[str, str] = field(default_factory=dict, repr=False)
    phase: str = ""
    pod_ip: str = ""
    containers: tuple[Container, ...] = ()
    deleted: bool = False

    @property
    def lives(self) -> bool:
        """Whether its containers may be running: not finished, though perhaps being deleted."""
        return self.phase not in FINISHED_PHASES
