"""The router in front of a node's prefill and decode engines."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from disagg_cluster.config.restart_policy import Deadlines, HealthProbes, Restart
from disagg_cluster.config.values import (
    AnyText,
    HostAddress,
    Port,
    ProgramText,
    RootUrl,
    Section,
    VariableName,
    reachable,
    root_url,
)

ROUTER_NAME = "router"
"""The router's name among the workers."""


class Router(Section):
    """One process that sends every request through a prefill and a decode engine.

    It uses all engines of this node in these two roles, and those of other nodes listed in
    `prefill` and `decode`. With `live` membership the daemon adds and removes engines while it
    runs; with `fixed` it keeps those that it was started with.
    """

    engine: Literal["vllm-router"] = Field(default="vllm-router", description="one of vllm-router")
    python: ProgramText = Field(
        default_factory=lambda: sys.executable, description="the path of a Python interpreter"
    )
    host: HostAddress = Field(
        default="127.0.0.1", description="an IP address of this node, such as 127.0.0.1"
    )
    port: Port = Field(default=8000, description="a port number from 1 to 65535")
    metrics_port: Port = Field(default=29000, description="a port number from 1 to 65535")
    policy: Literal[
        "random",
        "round_robin",
        "cache_aware",
        "kv_aware",
        "power_of_two",
        "consistent_hash",
        "sticky_least_loaded",
    ] = Field(
        default="round_robin",
        description="one of random, round_robin, cache_aware, kv_aware, power_of_two, "
        "consistent_hash, sticky_least_loaded",
    )
    kv_connector: Literal["nixl", "mooncake"] = Field(
        default="nixl", description="one of nixl, mooncake"
    )
    membership: Literal["fixed", "live"] = Field(default="fixed", description="one of fixed, live")
    prefill: Annotated[tuple[RootUrl, ...], Field(strict=False)] = Field(
        default=(), description='a list of engines of other nodes, such as ["http://10.0.0.7:8100"]'
    )
    decode: Annotated[tuple[RootUrl, ...], Field(strict=False)] = Field(
        default=(), description='a list of engines of other nodes, such as ["http://10.0.0.8:8200"]'
    )
    args: Annotated[tuple[AnyText, ...], Field(strict=False)] = Field(
        default=(), description='a list of arguments, such as ["--log-level", "warning"]'
    )
    env: Mapping[VariableName, AnyText] = Field(
        default={}, description="a mapping of variables to their values"
    )
    deadlines: Deadlines = Deadlines()
    health: HealthProbes | None = None
    restart: Restart | None = None

    @property
    def probe_host(self) -> str:
        """The address at which the router answers on this node."""
        return reachable(self.host)

    @property
    def url(self) -> str:
        """The root at which clients on this node reach it."""
        return root_url(self.host, self.port)

    @property
    def metrics_url(self) -> str:
        """The address of its own metrics page; on this node only."""
        return f"http://127.0.0.1:{self.metrics_port}/metrics"
