"""Contents of a node's metrics page: the data types of `phases` and `doctor`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineView:
    """One engine on the page; texts as in the labels, None where there is none.

    `follows` is the address of the leader where it is a follower; empty if it is unknown.
    `verified` is how it was verified where it speaks TLS, `tls_fault` the problem with that.
    `on_cpu`: no GPU of it is read, and it is accounted as one device of its own.
    """

    engine: str
    role: str = ""
    model_name: str = ""
    kind: str = ""
    version: str = ""
    up: bool = False
    source: str = ""
    confidence: str = ""
    pod: str = ""
    namespace: str = ""
    gpus: tuple[str, ...] = ()
    method: str = "none"
    split: str = "none"
    share_confidence: str = ""
    residual_ratio: float | None = None
    fitted_steps: float | None = None
    lost_records: float = 0.0
    registered: bool | None = None
    follows: str | None = None
    verified: str = ""
    tls_fault: str = ""
    on_cpu: bool = False


@dataclass(frozen=True, slots=True)
class DeviceView:
    """One device."""

    gpu: str
    device: str = ""
    gpu_name: str = ""


@dataclass(frozen=True, slots=True)
class NodePage:
    """The page as far as it shows what the node is doing."""

    version: str
    simulated: bool
    devices: tuple[DeviceView, ...]
    engines: tuple[EngineView, ...]
    collectors: Mapping[str, bool]
    left_out_engines: int = 0
