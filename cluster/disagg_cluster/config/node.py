"""A whole node file, and those of its sections that are about the node itself."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from disagg_cluster.config.attach import Attach
from disagg_cluster.config.bridges import Bridges
from disagg_cluster.config.failure_hook import FailureHook
from disagg_cluster.config.patience import USUAL_PROBES, HealthProbes, Restart
from disagg_cluster.config.router import Router
from disagg_cluster.config.section import Section
from disagg_cluster.config.values import (
    MOST_GPUS,
    AddressText,
    Amount,
    AnyText,
    Count,
    Currency,
    Devices,
    PathText,
    RootUrl,
    Seconds,
    Text,
)
from disagg_cluster.config.worker import Worker
from disagg_exporter import model
from disagg_exporter.devices.source import DeviceKind
from disagg_exporter.http.listen import ListenAddress, parse_listen


class Listen(Section):
    """Where the daemon is to be reached."""

    metrics: AddressText = Field(
        default="0.0.0.0:9847", description='an address such as "0.0.0.0:9847"'
    )
    web_config: PathText | None = Field(
        default=None, description="the path of a Prometheus web-config file"
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


class Dcgm(Section):
    """A dcgm-exporter of this node, for what the driver does not tell us itself."""

    url: RootUrl = Field(description="an address such as http://127.0.0.1:9400")
    interval_seconds: Seconds = Field(default=30.0, description="seconds, a number above 0")


class GpuPrice(Section):
    """What a GPU of this node costs."""

    currency: Currency = Field(description="a currency by its three letters, such as USD")
    per_hour: Amount = Field(description="the price of one GPU for an hour, a number from 0 up")


def _this_node() -> str:
    """The name of this host; in a pod, whose host's name is the pod's, what the chart tells."""
    return os.environ.get("NODE_NAME") or os.uname().nodename


class NodeConfig(Section):
    """One node: its devices, its workers, and what the daemon is to do about them."""

    node: Text = Field(default_factory=_this_node, description="the name of this node, text")
    cluster: AnyText = Field(default="", description="the name of the cluster, text")
    devices: Devices = Field(
        default=DeviceKind.AUTO, description="one of auto, nvml, dcgm, cpu, sim"
    )
    dcgm: Dcgm | None = None
    sim_devices: Annotated[int, Field(ge=1, le=MOST_GPUS)] = Field(
        default=8, description="a number of simulated devices, from 1 to 1024"
    )
    run_dir: PathText | None = Field(
        default=None, description="the path of a folder for sockets and logs"
    )
    log_megabytes: Count = Field(
        default=100, description="the size of a worker's log in megabytes, 1 or more"
    )
    on_sigterm: Literal["stop", "leave"] = Field(default="stop", description="one of stop, leave")
    peers: Literal["here", "elsewhere"] = Field(
        default="here", description="one of here, elsewhere"
    )
    listen: Listen = Listen()
    intervals: Intervals = Intervals()
    latency: Latency = Latency()
    health: HealthProbes = USUAL_PROBES
    restart: Restart = Restart()
    on_worker_failure: FailureHook | None = None
    gpu_price: GpuPrice | None = None
    workers: Annotated[tuple[Worker, ...], Field(strict=False)] = Field(
        default=(), description="a list of workers"
    )
    router: Router | None = None
    attach: Attach | None = None
    bridges: Bridges = Bridges()

    @property
    def run_folder(self) -> Path | None:
        """Where sockets and logs go, when the file says so."""
        return None if self.run_dir is None else Path(self.run_dir)

    @property
    def price(self) -> model.GpuPrice | None:
        """What a GPU costs, as the page shows it."""
        told = self.gpu_price
        return None if told is None else model.GpuPrice(told.currency, told.per_hour)
