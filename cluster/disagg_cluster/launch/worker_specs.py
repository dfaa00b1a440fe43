"""Turns a worker of the node file into the specification for its supervisor."""

from __future__ import annotations

from collections.abc import Mapping

from disagg_cluster.config import NodeConfig, Worker
from disagg_cluster.config.layout import Layout
from disagg_cluster.config.restart_policy import restart_policy
from disagg_cluster.host.files.package_data import engine_side_folder
from disagg_cluster.host.run_dir.layout import RunFolder
from disagg_cluster.launch.command import build, ranks_of
from disagg_cluster.supervisor.health.readiness import ProbeTarget
from disagg_cluster.supervisor.worker_spec import WorkerSpec
from disagg_exporter.model import Role


def specs_of(
    config: NodeConfig, layout: Layout, folder: RunFolder, inherited: Mapping[str, str]
) -> dict[str, WorkerSpec]:
    """Return what to run for each worker, by name, where it answers, and its patience settings.

    Args:
        config: The node file; a worker's own restart and probe settings override the node's.
        layout: The devices of each worker.
        folder: Where sockets and logs are.
        inherited: The environment that workers inherit from us.
    """
    return {
        worker.name: spec_of(worker, config, layout, folder, inherited) for worker in config.workers
    }


def in_role(worker: Worker, role: Role) -> Worker:
    """Return the worker as its node file would state it in another role: only role and args change.

    A KV role that the file names is reversed with it; `kv_both` and none fit either role.
    """
    kv = worker.kv_transfer
    if role is worker.role:
        return worker
    if kv is not None and kv.role in ("kv_producer", "kv_consumer"):
        kv = kv.model_copy(update={"role": None})
    return worker.model_copy(update={"role": role, "kv_transfer": kv})


def spec_of(
    worker: Worker,
    config: NodeConfig,
    layout: Layout,
    folder: RunFolder,
    inherited: Mapping[str, str],
) -> WorkerSpec:
    """Return what to run for one worker; see `specs_of`."""
    placement = layout.of(worker.name)
    probes = config.health.overridden_by(worker.health)
    restart = config.restart.overridden_by(worker.restart)
    command = build(
        worker,
        placement,
        steps_socket=folder.socket(worker.name),
        engine_side_folder=engine_side_folder(),
        sim_folder=folder.sim,
    )
    target = ProbeTarget(
        worker.port,
        worker.model_name,
        worker.probe_host,
        api_key(worker, inherited),
        timeout_seconds=probes.timeout_seconds,
        tls=worker.tls.probing if worker.certificate_file is not None else None,
    )
    return WorkerSpec(
        worker.name,
        command,
        folder.log(worker.name),
        target,
        restart_policy(worker.deadlines, restart, probes, config.intervals.health_seconds),
        role=worker.role,
        gpus=placement.gpus,
        ranks=ranks_of(worker),
        certificate_file=worker.certificate_file,
        limits=worker.limits,
    )


def api_key(worker: Worker, inherited: Mapping[str, str]) -> str:
    """Return the key that the engine's server requires; empty if none is, or none can be sent.

    Args:
        worker: Its arguments override its variables, and these what it inherits.
        inherited: The environment that it inherits from us.
    """
    key = _given_key(worker, inherited)
    return key if key.isascii() and key.isprintable() else ""


def _given_key(worker: Worker, inherited: Mapping[str, str]) -> str:
    for position, argument in enumerate(worker.arguments):
        name, given, value = argument.partition("=")
        if name == "--api-key":
            return value if given else "".join(worker.arguments[position + 1 : position + 2])
    return {**inherited, **worker.env}.get("VLLM_API_KEY", "") if worker.engine == "vllm" else ""
