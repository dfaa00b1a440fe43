"""Three simulated nodes, users whose requests cross them, a Prometheus and the planner."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from scripts.local_cluster.plan import ClusterPlan, Door, Machine, Program

from disagg_cluster.demo.nodefile import GPU_PRICE, MODEL, PRICES
from disagg_cluster.host.files.package_data import asset_dir
from disagg_cluster.prometheus.local_server import (
    CONFIG_FILE,
    ScrapeTarget,
    prometheus_argv,
    scrape_config,
)

CLUSTER = "local"
NODES = ("node-a", "node-b", "node-c")
GPUS_PER_WORKER = 2
SCRAPE_SECONDS = 2.0
_FOLDER = "/run/disagg-cluster"
_DISAGG_NODE = (sys.executable, "-m", "disagg_cluster.cli")
ENGINES = {"prefill-0": ("prefill", 8100), "decode-0": ("decode", 8200)}
_PAGE_PORT, _PROMETHEUS_PORT, _PLANNER_PORT = 9847, 9090, 9848
# It is kept in memory, at most some hundred MB.
_RETENTION = "3h"


def simulated_cluster(prometheus: Path, first_port: int) -> ClusterPlan:
    """Return the plan of the cluster that `make run-cluster` runs.

    Args:
        prometheus: The path of its program.
        first_port: The port of the first door, followed by the others; 0 for any.
    """
    machines = tuple(
        Machine(name, f"10.89.0.{number}") for number, name in enumerate(NODES, start=1)
    )
    switch = ClusterPlan(machines).switch_address
    files = {f"{_FOLDER}/{each.name}.yaml": _yaml(_node_file(each)) for each in machines}
    files[f"{_FOLDER}/planner.yaml"] = _yaml(_planner_file())
    files[f"{_FOLDER}/prometheus/{CONFIG_FILE}"] = scrape_config(
        [ScrapeTarget(f"{each.address}:{_PAGE_PORT}", each.name, CLUSTER) for each in machines],
        interval_seconds=SCRAPE_SECONDS,
        rule_files=[f"{asset_dir('alerts')}/rules/*.yaml"],
    )
    daemons = [
        Program(
            each.name,
            (*_DISAGG_NODE, "start", "-c", f"{_FOLDER}/{each.name}.yaml", "--plain"),
            each.name,
        )
        for each in machines
    ]
    pages = [
        *((each.name, each.address, _PAGE_PORT, "/metrics") for each in machines),
        ("Prometheus", switch, _PROMETHEUS_PORT, "/-/ready"),
        ("planner", switch, _PLANNER_PORT, "/metrics"),
    ]
    return ClusterPlan(
        machines,
        (
            *daemons,
            Program(
                "prometheus",
                prometheus_argv(
                    prometheus,
                    Path(_FOLDER, "prometheus"),
                    listen=f"0.0.0.0:{_PROMETHEUS_PORT}",
                    retention=_RETENTION,
                ),
            ),
            Program("planner", (*_DISAGG_NODE, "planner", "-c", f"{_FOLDER}/planner.yaml")),
            Program("users", _users(machines)),
        ),
        tuple(
            Door(name, first_port + number if first_port else 0, address, port, health)
            for number, (name, address, port, health) in enumerate(pages)
        ),
        files,
        _FOLDER,
    )


def _node_file(machine: Machine) -> dict[str, Any]:
    workers = []
    for number, (name, (role, port)) in enumerate(ENGINES.items()):
        first = number * GPUS_PER_WORKER
        workers.append(
            {
                "name": name,
                "engine": "standin",
                "role": role,
                "gpus": list(range(first, first + GPUS_PER_WORKER)),
                "model": MODEL,
                "host": machine.address,
                "port": port,
                "args": ["--prices", PRICES],
                "deadlines": {"start_seconds": 60, "drain_seconds": 5, "stop_seconds": 5},
            }
        )
    return {
        "node": machine.name,
        "cluster": CLUSTER,
        "devices": "sim",
        "sim_devices": GPUS_PER_WORKER * len(ENGINES),
        "gpu_price": GPU_PRICE,
        "listen": {"metrics": f"{machine.address}:{_PAGE_PORT}"},
        "run_dir": f"{_FOLDER}/{machine.name}",
        "workers": workers,
    }


def _planner_file() -> dict[str, Any]:
    return {
        "cluster": CLUSTER,
        "prometheus": {"url": f"http://127.0.0.1:{_PROMETHEUS_PORT}"},
        "listen": {"metrics": f"0.0.0.0:{_PLANNER_PORT}"},
        "lock_file": f"{_FOLDER}/planner.lock",
        "every_seconds": 15,
        "targets": {"ttft_seconds": 0.5, "itl_seconds": 0.05},
    }


def _users(machines: Sequence[Machine]) -> tuple[str, ...]:
    argv = [sys.executable, "-m", "scripts.local_cluster.users", MODEL]
    for machine in machines:
        argv += [f"{role}=http://{machine.address}:{port}" for role, port in ENGINES.values()]
    return tuple(argv)


def _yaml(value: object) -> str:
    return yaml.safe_dump(value, sort_keys=False)
