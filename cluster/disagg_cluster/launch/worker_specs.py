"""From a worker of the node file to the specification that its supervisor works by."""

from __future__ import annotations

from collections.abc import Mapping

from disagg_cluster.config import HealthProbes, NodeConfig, Restart, Worker
from disagg_cluster.config.layout import Layout, Placement
from disagg_cluster.config.restart_policy import DEFAULT_PROBES, restart_policy
from disagg_cluster.host.files.package_data import engine_side_folder
from disagg_cluster.host.run_dir.layout import RunFolder
from disagg_cluster.launch.command import build, ranks_of
from disagg_cluster.supervisor.health.readiness import ProbeTarget
from disagg_cluster.supervisor.worker_spec import WorkerSpec


def specs_of(
    config: NodeConfig, layout: Layout, folder: RunFolder, inherited: Mapping[str, str]
) -> dict[str, WorkerSpec]:
    """The specifications of all workers, by name; the arguments are those of `spec_of`."""
    return {
        worker.name: spec_of(
            worker,
            layout.of(worker.name),
            folder,
            config.restart,
            inherited,
            config.health,
            config.intervals.health_seconds,
        )
        for worker in config.workers
    }


def spec_of(
    worker: Worker,
    placement: Placement,
    folder: RunFolder,
    restart: Restart,
    inherited: Mapping[str, str],
    health: HealthProbes = DEFAULT_PROBES,
    health_seconds: float = 1.0,
) -> WorkerSpec:
    """What to run for a worker, where it answers and how patient to be with it.

    Args:
        worker: What the node file says of it.
        placement: Its devices.
        folder: Where its socket and its log are.
        restart: The node's rules; the worker's own come first.
        inherited: The environment it gets from us.
        health: The node's rules of probes; the worker's own come first.
        health_seconds: How often it is probed.
    """
    probes = health.overridden_by(worker.health)
    command = build(
        worker,
        placement,
        steps_socket=folder.socket(worker.name),
        engine_side_folder=engine_side_folder(),
        sim_folder=folder.sim,
    )
    return WorkerSpec(
        worker.name,
        command,
        folder.log(worker.name),
        ProbeTarget(
            worker.port,
            worker.model_name,
            worker.probe_host,
            api_key(worker, inherited),
            timeout_seconds=probes.timeout_seconds,
            tls=worker.tls.probing if worker.certificate_file is not None else None,
        ),
        restart_policy(
            worker.deadlines, restart.overridden_by(worker.restart), probes, health_seconds
        ),
        role=worker.role,
        gpus=placement.gpus,
        ranks=ranks_of(worker),
        certificate_file=worker.certificate_file,
        limits=worker.limits,
    )


def api_key(worker: Worker, inherited: Mapping[str, str]) -> str:
    """A key that the engine's server asks for; empty if it asks for none, or none can be sent.

    Args:
        worker: Its arguments come before its variables, and these before what it inherits.
        inherited: The environment it gets from us.
    """
    key = _told_key(worker, inherited)
    return key if key.isascii() and key.isprintable() else ""


def _told_key(worker: Worker, inherited: Mapping[str, str]) -> str:
    for position, argument in enumerate(worker.args):
        name, given, value = argument.partition("=")
        if name == "--api-key":
            return value if given else "".join(worker.args[position + 1 : position + 2])
    return {**inherited, **worker.env}.get("VLLM_API_KEY", "") if worker.engine == "vllm" else ""
