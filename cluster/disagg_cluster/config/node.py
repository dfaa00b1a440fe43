"""The node file, and its sections about the node itself."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from disagg_cluster.config.control import Control
from disagg_cluster.config.restart_policy import DEFAULT_PROBES, HealthProbes, Restart
from disagg_cluster.config.router import Router
from disagg_cluster.config.tls import EngineTls
from disagg_cluster.config.values import (
    MOST_GPUS,
    AddressText,
    Amount,
    AnyText,
    CommandWords,
    Count,
    Currency,
    Devices,
    EngineRole,
    EngineUrl,
    GpuList,
    HookUrl,
    PageUrl,
    PathText,
    RootUrl,
    Seconds,
    Section,
    Text,
)
from disagg_cluster.config.worker import Worker
from disagg_exporter import model
from disagg_exporter.devices.source import DeviceKind
from disagg_exporter.http.listen import ListenAddress, parse_listen


class ListedEngine(Section):
    """An engine listed by hand; everything but its address is optional."""

    url: EngineUrl = Field(description="an address such as http://10.0.0.7:8100")
    name: Annotated[str, Field(pattern=r"^[a-z0-9-]{1,40}$")] | None = Field(
        default=None, description="a name of 1 to 40 characters from a-z, 0-9 and -"
    )
    engine: Literal["vllm", "sglang", "trtllm", "dynamo"] = Field(
        default="vllm", description="one of vllm, sglang, trtllm, dynamo"
    )
    role: EngineRole | None = Field(
        default=None, description="one of prefill, decode, mixed, encode"
    )
    gpus: GpuList = Field(default=(), description="a list of GPU indices and UUIDs ([0, 1])")
    tls: EngineTls | None = None


class Attach(Section):
    """Where to look for engines that this node did not launch."""

    endpoints: Annotated[tuple[ListedEngine, ...], Field(strict=False)] = Field(
        default=(), description="a list of engines"
    )
    processes: bool = Field(default=True, description="true or false")
    kubernetes: Literal["auto", "always", "never"] = Field(
        default="auto", description="one of auto, always, never"
    )
    dynamo_files: PathText | None = Field(
        default=None, description="the path of the folder that Dynamo's DYN_FILE_KV is set to"
    )
    tls: EngineTls = EngineTls()


class Frontend(Section):
    """A frontend or router run by something else, whose page has end-to-end latencies."""

    url: RootUrl = Field(description="an address such as http://127.0.0.1:8000")
    namespace: AnyText = Field(
        default="", description="the Kubernetes namespace of the engines behind it, text"
    )


MOST_FRONTENDS = 16


class Bridges(Section):
    """Files written for other exporters."""

    hpc_job_dir: PathText | None = Field(
        default=None, description="the path of dcgm-exporter's folder for job mapping files"
    )


FailureEvent = Literal["crashed", "hung", "failed", "recovered"]
DEFAULT_EVENTS: tuple[FailureEvent, ...] = ("crashed", "hung", "failed")


class FailureHook(Section):
    """A command that gets each failure as JSON on standard input, or a URL it is posted to."""

    command: CommandWords | None = Field(
        default=None, description="a list of a program and its arguments, if any"
    )
    url: HookUrl | None = Field(
        default=None, description="an address such as https://hooks.example.com/gpu-7"
    )
    events: Annotated[tuple[FailureEvent, ...], Field(strict=False)] = Field(
        default=DEFAULT_EVENTS, description="a list of any of crashed, hung, failed, recovered"
    )
    deadline_seconds: Annotated[Seconds, Field(le=300)] = Field(
        default=10.0, description="seconds, a number above 0 and up to 300"
    )


class Listen(Section):
    """Address and access settings of the daemon's web server."""

    metrics: AddressText = Field(
        default="0.0.0.0:9847", description='an address such as "0.0.0.0:9847"'
    )
    web_config: PathText | None = Field(
        default=None, description="the path of a Prometheus web-config file"
    )

    @property
    def metrics_address(self) -> ListenAddress:
        """The address at which the metrics page is served."""
        return parse_listen(self.metrics)


class IntervalsConfig(Section):
    """How often devices, engine pages and health are read."""

    model_config = ConfigDict(title="Intervals")

    devices_seconds: Seconds = 0.1
    pages_seconds: Seconds = 1.0
    health_seconds: Seconds = 1.0


class Latency(Section):
    """Latency targets that capacity and late tokens are measured against."""

    ttft_seconds: Seconds = 0.5
    itl_seconds: Seconds = 0.05


class LinksConfig(Section):
    """Links to Prometheus and Grafana, as a browser reaches them."""

    model_config = ConfigDict(title="Links")

    prometheus: PageUrl | None = Field(
        default=None, description="an address such as http://prometheus:9090"
    )
    grafana: PageUrl | None = Field(
        default=None, description="an address such as https://grafana.example.com"
    )


class Dcgm(Section):
    """A dcgm-exporter of this node, for readings that the driver does not report."""

    url: RootUrl = Field(description="an address such as http://127.0.0.1:9400")
    interval_seconds: Seconds = 30.0


class GpuPriceConfig(Section):
    """The price of a GPU of this node."""

    model_config = ConfigDict(title="GpuPrice")

    currency: Currency = Field(description="a three-letter currency code, such as USD")
    per_hour: Amount = Field(description="the price of one GPU for an hour, a number from 0 up")


def _this_node() -> str:
    """Return this host's name; in a pod, whose host name is the pod's, the chart's value."""
    return os.environ.get("NODE_NAME") or os.uname().nodename


class NodeConfig(Section):
    """One node: its devices, its workers, and how the daemon manages them."""

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
    control: Control = Control()
    planner: EngineUrl | None = Field(
        default=None, description="an address such as http://planner:9848"
    )
    links: LinksConfig = LinksConfig()
    intervals: IntervalsConfig = IntervalsConfig()
    latency: Latency = Latency()
    health: HealthProbes = DEFAULT_PROBES
    restart: Restart = Restart()
    on_worker_failure: FailureHook | None = None
    gpu_price: GpuPriceConfig | None = None
    workers: Annotated[tuple[Worker, ...], Field(strict=False)] = Field(
        default=(), description="a list of workers"
    )
    router: Router | None = None
    attach: Attach | None = None
    frontends: Annotated[tuple[Frontend, ...], Field(strict=False, max_length=MOST_FRONTENDS)] = (
        Field(default=(), description="a list of up to 16 frontends")
    )
    bridges: Bridges = Bridges()

    @property
    def run_folder(self) -> Path | None:
        """Where sockets and logs go, if the file states it."""
        return None if self.run_dir is None else Path(self.run_dir)

    @property
    def price(self) -> model.GpuPrice | None:
        """The price of a GPU, as the page shows it."""
        price = self.gpu_price
        return None if price is None else model.GpuPrice(price.currency, price.per_hour)
