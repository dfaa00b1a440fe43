"""What the doctor looks at, as values; and what it says of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from disagg_cluster.inspect.views import EngineView


class Level(StrEnum):
    """How bad a finding is: nothing to do, could be better, does not work."""

    FINE = "fine"
    BETTER = "better"
    WRONG = "wrong"

    @property
    def rank(self) -> int:
        """0 for the harmless."""
        return list(Level).index(self)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing found; `step` is what to do about it, `gain` how much that helps (0 to 9)."""

    level: Level
    what: str
    step: str = ""
    gain: int = 0


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a node.

    `version` is that of the daemon that answered at `url`, None if none did; then engines and
    `lost` are what a look without it has shown. `devices` are counted, `no_gpus` says why none of
    them is a GPU. `collectors` say whether the last round of each went well.
    `left_out_engines` were found and not attached to.
    """

    url: str
    version: str | None = None
    simulated: bool = False
    devices: int = 0
    no_gpus: str = ""
    engines: tuple[EngineView, ...] = ()
    collectors: Mapping[str, bool] = field(default_factory=dict)
    lost: tuple[str, ...] = ()
    left_out_engines: int = 0
    in_cluster: bool = False
    node_name: bool = False
    kubelet_socket: bool = False
    grpc: bool = True
