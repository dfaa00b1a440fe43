"""The command that starts the router, and the engines it sends requests to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from urllib.parse import urlsplit

from disagg_cluster.config import NodeConfig, Router, Worker
from disagg_cluster.lifecycle.state import LaunchCommand
from disagg_exporter.model import Phase, Role, RouterEngine

# How often the router checks each engine's health; three misses take it out. Its own default of a
# minute would send requests to a dead engine for three minutes.
HEALTH_SECONDS = 5

# How much longer than its slowest engine the router may take to start.
_START_MARGIN_SECONDS = 60.0

OWN_ARGUMENTS: Mapping[str, str] = {
    "--host": "say it with the key host",
    "--port": "say it with the key port",
    "--prometheus-host": "its page is read on this node only",
    "--prometheus-port": "say it with the key metrics_port",
    "--policy": "say it with the key policy",
    "--enable-igw": "say it with the key membership",
    "--kv-connector": "say it with the key kv_connector",
    "--vllm-pd-disaggregation": "it is always given",
    "--worker-urls": "its engines are the prefill and decode workers of this node",
    "--prefill": "its engines are this node's workers; name others with the key prefill",
    "--decode": "its engines are this node's workers; name others with the key decode",
}
"""Arguments that a node file may not give to vllm-router, with the reason."""


def router_command(config: NodeConfig, router: Router) -> LaunchCommand:
    """Return the command that starts the router of a node."""
    argv = [router.python, "-m", "vllm_router.launch_router", "--vllm-pd-disaggregation"]
    argv += _engines(config, router)
    argv += ["--host", router.host, "--port", str(router.port)]
    argv += ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(router.metrics_port)]
    argv += ["--policy", router.policy, "--kv-connector", router.kv_connector]
    argv += ["--health-check-interval-secs", str(HEALTH_SECONDS)]
    # It listens only once all its engines are healthy, checking every half minute by default.
    argv += ["--worker-startup-timeout-secs", str(round(start_seconds(config, router)))]
    argv += ["--worker-startup-check-interval", "1"]
    # Through a proxy that the daemon's environment names it would wait for its engines for ever;
    # the variable takes hosts, no wildcard.
    engines = router_engines(config, router)
    hosts = dict.fromkeys(urlsplit(engine.url).hostname or "" for engine in engines)
    direct = ",".join(hosts)
    environment = {"NO_PROXY": direct, "no_proxy": direct, **router.env}
    return LaunchCommand((*argv, *router.args), environment)


def _engines(config: NodeConfig, router: Router) -> list[str]:
    """Return the arguments for the engines that it is started with."""
    # With this option the router begins without engines, even if it is given some, and receives
    # them when it serves; without any it would not begin.
    argv = ["--enable-igw"] if router.membership == "live" else []
    for worker in _of_role(config, Role.PREFILL):
        argv += ["--prefill", worker.url, *_bootstrap(router, worker)]
    for url in router.prefill:
        argv += ["--prefill", url]
    for url in (*(worker.url for worker in _of_role(config, Role.DECODE)), *router.decode):
        argv += ["--decode", url]
    return argv


def router_engines(config: NodeConfig, router: Router) -> tuple[RouterEngine, ...]:
    """Return every engine that the router sends requests to.

    One of this node is named by its worker, a remote one by its host and port.
    """
    elsewhere = {Phase.PREFILL: router.prefill, Phase.DECODE: router.decode}
    engines: list[RouterEngine] = []
    for role, phase in ((Role.PREFILL, Phase.PREFILL), (Role.DECODE, Phase.DECODE)):
        own = _of_role(config, role)
        engines += [RouterEngine(worker.url, worker.name, phase) for worker in own]
        engines += [RouterEngine(url, urlsplit(url).netloc, phase) for url in elsewhere[phase]]
    return tuple(engines)


def start_seconds(config: NodeConfig, router: Router) -> float:
    """Return how long the router may take to start; by default longer than all its engines may."""
    deadlines = router.deadlines
    if "start_seconds" in deadlines.model_fields_set:
        return deadlines.start_seconds
    own = (*_of_role(config, Role.PREFILL), *_of_role(config, Role.DECODE))
    slowest = max((w.deadlines.start_seconds for w in own), default=deadlines.start_seconds)
    return slowest + _START_MARGIN_SECONDS


def _of_role(config: NodeConfig, role: Role) -> Iterator[Worker]:
    return (worker for worker in config.workers if worker.role is role)


def bootstrap_port(router: Router, worker: Worker) -> int | None:
    """Return the port on which a Mooncake prefill engine identifies itself; None for any other."""
    ports = worker.side_channel_ports
    return ports.start if router.kv_connector == "mooncake" and ports else None


def _bootstrap(router: Router, worker: Worker) -> tuple[str, ...]:
    port = bootstrap_port(router, worker)
    return () if port is None else (str(port),)
