"""What a node file says, once it is understood: frozen, with units in the names.

The description of each field completes the sentence "expected …": it is what a person is told
whose file says something else, and what the JSON schema says.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from disagg_cluster.values import (
    MOST_GPUS,
    AddressText,
    AnyText,
    Devices,
    EngineRole,
    Gpus,
    PathText,
    Port,
    Seconds,
    Text,
    VariableName,
)
from disagg_exporter.devices import DeviceKind
from disagg_exporter.listen import ListenAddress, parse_listen

NIXL_DEFAULT_PORT = 5600
"""Where NIXL listens for its peers when nobody says otherwise."""


class Section(BaseModel):
    """A mapping of the node file: it knows its keys and takes no others."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Listen(Section):
    """Where the daemon is to be reached."""

    metrics: AddressText = Field(
        default="0.0.0.0:9847", description='an address such as "0.0.0.0:9847"'
    )

    @property
    def metrics_address(self) -> ListenAddress:
        """Where the metrics page is served."""
        return parse_listen(self.metrics)


class Intervals(Section):
    """How often things are looked at."""

    devices_seconds: Seconds = Field(default=0.1, description="seconds, a number above 0")
    pages_seconds: Seconds = Field(default=1.0, description="seconds, a number above 0")
    health_seconds: Seconds = Field(default=1.0, description="seconds, a number above 0")


class Latency(Section):
    """What users are promised: the targets that capacity is measured against."""

    ttft_seconds: Seconds = Field(default=0.5, description="seconds, a number above 0")
    itl_seconds: Seconds = Field(default=0.05, description="seconds, a number above 0")


class Deadlines(Section):
    """How long a worker may take before the next, stronger measure."""

    start_seconds: Seconds = Field(default=900.0, description="seconds, a number above 0")
    drain_seconds: Seconds = Field(default=30.0, description="seconds, a number above 0")
    stop_seconds: Seconds = Field(default=10.0, description="seconds, a number above 0")


class KvTransfer(Section):
    """How a worker's KV cache gets from prefill to decode; in the words of the engine."""

    connector: Text = Field(description="the engine's name of a connector, such as NixlConnector")
    role: Literal["kv_producer", "kv_consumer", "kv_both"] | None = Field(
        default=None, description="one of kv_producer, kv_consumer, kv_both"
    )
    side_channel_port: Port | None = Field(
        default=None, description="a port number from 1 to 65535"
    )
    extra_config: Mapping[str, JsonValue] = Field(
        default={}, description="a mapping of what the connector itself wants to know"
    )
    buffer_device: Text | None = Field(default=None, description="a device such as cpu or cuda")

    @property
    def side_channel_base(self) -> int | None:
        """The first port on which engines tell each other of KV; None where there is none."""
        if self.side_channel_port is not None:
            return self.side_channel_port
        # A connector that wraps others names them in its extra configuration.
        speaks_nixl = "nixl" in f"{self.connector} {self.extra_config}".lower()
        return NIXL_DEFAULT_PORT if speaks_nixl else None


class Worker(Section):
    """One engine that this node launches."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9-]{1,40}$")] = Field(
        description="a name of 1 to 40 characters out of a-z, 0-9 and -"
    )
    engine: Literal["vllm", "standin"] = Field(default="vllm", description="one of vllm, standin")
    role: EngineRole = Field(description="one of prefill, decode, mixed, encode")
    gpus: Gpus = Field(
        default=0, description="a count (2) or a list of GPU indices and UUIDs ([0, 1])"
    )
    model: PathText = Field(description="the path of a model's folder, or its name on the hub")
    served_model_name: Text | None = Field(default=None, description="a name for the model, text")
    python: PathText = Field(
        default_factory=lambda: sys.executable, description="the path of a Python interpreter"
    )
    port: Port = Field(description="a port number from 1 to 65535")
    tensor_parallel_size: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="a number of GPUs, 1 or more"
    )
    args: Annotated[tuple[AnyText, ...], Field(strict=False)] = Field(
        default=(), description='a list of arguments, such as ["--max-model-len", "8192"]'
    )
    env: Mapping[VariableName, AnyText] = Field(
        default={}, description="a mapping of variables to their values"
    )
    kv_transfer: KvTransfer | None = None
    deadlines: Deadlines = Deadlines()

    @property
    def gpu_count(self) -> int:
        """How many GPUs the worker wants; 0 on a node without any."""
        return self.gpus if isinstance(self.gpus, int) else len(self.gpus)

    @property
    def tp_size(self) -> int:
        """Over how many devices each layer of the model is spread."""
        return self.tensor_parallel_size or max(1, self.gpu_count)

    @property
    def model_name(self) -> str:
        """What the engine's users call the model."""
        return self.served_model_name or self.model

    @property
    def side_channel_ports(self) -> range:
        """The ports on which other engines ask this one for KV: one for each rank of the model.

        None at all for a stand-in: it only pretends to move KV.
        """
        base = self.kv_transfer.side_channel_base if self.kv_transfer else None
        if base is None or self.engine == "standin":
            return range(0)
        return range(base, base + self.tp_size)


class NodeConfig(Section):
    """One node: its devices, its workers, and what the daemon is to do about them."""

    node: Text = Field(
        default_factory=lambda: os.uname().nodename, description="the name of this node, text"
    )
    cluster: AnyText = Field(default="", description="the name of the cluster, text")
    devices: Devices = Field(default=DeviceKind.AUTO, description="one of auto, nvml, cpu, sim")
    sim_devices: Annotated[int, Field(ge=1, le=MOST_GPUS)] = Field(
        default=8, description="a number of simulated devices, from 1 to 1024"
    )
    run_dir: PathText | None = Field(
        default=None, description="the path of a folder for sockets and logs"
    )
    listen: Listen = Listen()
    intervals: Intervals = Intervals()
    latency: Latency = Latency()
    workers: Annotated[tuple[Worker, ...], Field(strict=False)] = Field(
        default=(), description="a list of workers"
    )

    @property
    def run_folder(self) -> Path | None:
        """Where sockets and logs go, when the file says so."""
        return None if self.run_dir is None else Path(self.run_dir)
