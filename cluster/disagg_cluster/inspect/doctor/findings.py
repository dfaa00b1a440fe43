"""Derives findings from the facts of a node; each function examines one aspect. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from disagg_cluster.discovery.observations.types import MAX_ENGINES
from disagg_cluster.inspect.doctor.facts import (
    Diagnosis,
    Level,
    NodeFacts,
    accuracy,
    tls_faults,
    unanswering,
    unverified_engines,
)
from disagg_cluster.inspect.doctor.workers import examine_worker
from disagg_exporter.model.counted import agreeing, counted

_MAKE_ROOM = "make room on the disk of the run folder, or make it writable"
_LOST_BY = {
    "nvml": (
        "the GPUs cannot all be read: their activity, energy and memory are missing",
        "run nvidia-smi here; a GPU that fell off the bus comes back with a reset or a reboot",
    ),
    "dcgm": (
        "the GPUs cannot all be read from dcgm-exporter: their activity and energy are missing",
        "let `dcgm.url` lead to this node's exporter, and see whether it answers",
    ),
    "discovery:processes": (
        "not all engines' processes can be looked into: ports, arguments and GPUs may be missing",
        "run as root or as the engines' user, in a container with hostPID (docs/attach.md)",
    ),
    "discovery:pods": (
        "pods are not known whole: labels, namespaces or the GPUs of containers are missing",
        "see the daemon's log for which right is missing (docs/attach.md)",
    ),
    "discovery:dynamo": (
        "Dynamo's discovery files cannot be read: lost registrations are not seen",
        "let `attach: dynamo_files:` name the folder that DYN_FILE_KV names",
    ),
    "kube_api": (
        "the API server does not list the pods of this node",
        "bind the ClusterRole that may list and watch pods (docs/kubernetes-engines.md)",
    ),
    "kubelet": (
        "the kubelet does not report which container holds which GPU",
        "mount /var/lib/kubelet/pod-resources and run as uid 0 (docs/attach.md)",
    ),
    "pod_steps": (
        "some pods that asked for it cannot report their steps",
        "see the daemon's log; docs/kubernetes-engines.md has the manifests",
    ),
    "steps:attached": (
        "no step telemetry is received from engines started by hand",
        "the daemon's log says why; such an engine must run as the daemon's user or as root",
    ),
    "journal": (
        "the journal cannot be written: a next daemon could not adopt the workers",
        _MAKE_ROOM,
    ),
    "checkpoint": (
        "the accounts cannot be kept: with a next daemon all counters would begin at zero",
        f"do not restart the daemon before; {_MAKE_ROOM}",
    ),
    "learned": (
        "what was learned cannot be kept: a next daemon would learn capacity and costs anew",
        _MAKE_ROOM,
    ),
    "log_rotation": ("logs grow, or cannot be written", _MAKE_ROOM),
    "run_folder": (
        "what was removed from the run folder is not there: a next daemon may not find the engines",
        _MAKE_ROOM,
    ),
}


def daemon(facts: NodeFacts) -> Iterator[Diagnosis]:
    """Yield whether a daemon measures at all."""
    if facts.version is None:
        yield Diagnosis(
            Level.WRONG,
            f"no daemon answers at {facts.url}: nothing is counted",
            f"start the daemon: disagg-node start{f' -c {facts.file}' if facts.file else ''}",
            gain=9,
        )
        if facts.left_workers:
            said = agreeing(
                len(facts.left_workers),
                "goes on without the daemon that launched it: it is not restarted; the next daemon "
                "of its node file adopts it",
                "go on without the daemon that launched them: they are not restarted; the next "
                "daemon of their node file adopts them",
            )
            yield Diagnosis(Level.WRONG, f"{', '.join(facts.left_workers)} {said}")
    else:
        yield Diagnosis(Level.FINE, f"disagg-node {facts.version} answers at {facts.url}")
    if facts.simulated:
        yield Diagnosis(Level.WARN, "this node is SIMULATED: its numbers are no real work")


def devices(facts: NodeFacts) -> Iterator[Diagnosis]:
    """Yield which devices are read."""
    if facts.no_gpus:
        yield Diagnosis(
            Level.WARN,
            f"no GPUs are read ({facts.no_gpus}): each engine is accounted as one device",
        )
    else:
        yield Diagnosis(
            Level.FINE,
            f"{counted(facts.devices, 'device')} {agreeing(facts.devices, 'is', 'are')} read",
        )


def workers(facts: NodeFacts) -> Iterator[Diagnosis]:
    """Yield the state of the workers that the daemon has launched."""
    for worker in facts.workers:
        yield from examine_worker(worker)


def other_daemons(facts: NodeFacts) -> Iterator[Diagnosis]:
    """Yield whether this host is measured twice."""
    if facts.version is None or not facts.other_daemons:
        return
    pids = ", ".join(map(str, facts.other_daemons))
    yield Diagnosis(
        Level.WARN,
        f"another disagg-node runs on this host (pid {pids}): engines that both attach to are "
        "counted twice",
        "stop one of them, or let one name its engines: `attach: processes: false`",
        gain=7,
    )


def _not_ready(facts: NodeFacts) -> set[str]:
    """Return the workers that start or have died: only their state is reported."""
    return {worker.worker for worker in facts.workers if worker.state != "ready"}


def engines(facts: NodeFacts) -> Iterator[Diagnosis]:
    """Yield whether engines were found, and answer."""
    not_ready = _not_ready(facts)
    if not (facts.engines or facts.workers or facts.left_workers):
        yield Diagnosis(
            Level.WARN,
            "no engine was found on this node",
            "start an engine, name the address of one (`attach: endpoints:` in the node file), or "
            "let `disagg-node init` write a node file that launches one",
            gain=5,
        )
    if left_out := facts.left_out_engines:
        yield Diagnosis(
            Level.WRONG,
            f"{counted(left_out, 'engine')} beyond the {MAX_ENGINES} that one daemon attaches to "
            f"{agreeing(left_out, 'was found: it is', 'were found: they are')} neither shown nor "
            "measured",
            "list those that matter under `attach: endpoints:`, with `processes: false`",
            gain=7,
        )
    launched = {worker.worker for worker in facts.workers}
    for engine in facts.engines:
        if engine.engine in not_ready:
            continue
        if engine.follows is not None:
            leader = engine.follows or "a leader of unknown address"
            what = f"{engine.engine} is a follower of {leader}, which answers for it"
            yield Diagnosis(Level.FINE, what)
        if engine.registered is False:
            yield Diagnosis(
                Level.WRONG,
                f"{engine.engine} answers but has lost its registration: no request reaches it",
                f"restart {engine.engine}",
                gain=8,
            )
        by_tls = tuple(tls_faults(engine))
        yield from by_tls
        if not engine.up and not by_tls:
            yield unanswering(engine, is_launched=engine.engine in launched)
        yield from unverified_engines(engine)
        if engine.up and not engine.gpus and engine.follows is None:
            yield Diagnosis(
                Level.WRONG,
                f"{engine.engine} answers, and no time can be attributed to it: it is not known "
                "which GPUs it has",
                "run the daemon as root or as the engine's user, or name its `gpus:` under "
                "`attach: endpoints:` (docs/attach.md)",
                gain=7,
                engine=engine.engine,
            )


def roles(facts: NodeFacts) -> Iterator[Diagnosis]:
    """Yield whether the engines' roles are known."""
    for engine in facts.engines:
        how = "label its pod disagg-node/role, or start it with DISAGG_NODE_ROLE"
        if engine.role == "unknown" and engine.source == "dynamic":
            what = f"{engine.engine} can switch roles, and has done too little to show which it has"
            yield Diagnosis(Level.WARN, what)
        elif engine.role == "unknown":
            why = (
                "does not show it yet"
                if engine.follows is None
                else "is reported by its leader only"
            )
            yield Diagnosis(
                Level.WARN,
                f"the role of {engine.engine} is unknown, and its traffic {why}",
                f"{how}=prefill, decode or mixed",
                gain=5,
                engine=engine.engine,
            )
        elif engine.confidence == "low":
            yield Diagnosis(
                Level.WARN,
                f"{engine.engine} is {engine.role} by a hint only ({engine.source})",
                f"{how}={engine.role}",
                gain=2,
                engine=engine.engine,
            )
        elif engine.source:
            # An engine without a process has no role now; its state is reported with the workers.
            how_known = f"{engine.source}, {engine.confidence}"
            yield Diagnosis(Level.FINE, f"{engine.engine} is {engine.role} ({how_known})")


def collectors(facts: NodeFacts) -> Iterator[Diagnosis]:
    """Yield which of the daemon's collectors fail, and what is lost by it."""
    not_ready = _not_ready(facts)
    for collector, success in facts.collectors.items():
        if success or collector.startswith("engine:"):
            continue
        if collector not in _LOST_BY and collector.startswith(("steps:", "fpm:")):
            engine = collector.partition(":")[2]
            if engine in not_ready:
                continue
            what = f"the steps of {engine} are not received"
            yield Diagnosis(Level.WRONG, what, "the daemon's log says why", gain=7)
            continue
        what, step = _LOST_BY.get(collector, (f"the collector {collector} fails", ""))
        yield Diagnosis(Level.WRONG, what, step or "the daemon's log says why", gain=7)


def rights(facts: NodeFacts) -> Iterator[Diagnosis]:
    """Yield what a scan without the daemon could not observe."""
    for lost in facts.lost:
        yield Diagnosis(
            Level.WRONG, lost, "docs/attach.md lists the rights and what each allows", gain=7
        )


def packages(facts: NodeFacts) -> Iterator[Diagnosis]:
    """Yield what is not installed though it is needed here."""
    if facts.kubelet_socket and not facts.grpc:
        yield Diagnosis(
            Level.WRONG,
            "grpcio is not installed: the kubelet cannot be asked which container holds which GPU",
            "pip install 'disagg-node[kubernetes]'",
            gain=7,
        )
    if facts.in_cluster and not facts.node_name:
        yield Diagnosis(
            Level.WRONG,
            "NODE_NAME is not set: the pods of this node cannot be asked for",
            "set it from spec.nodeName, as the chart does",
            gain=7,
        )


def numbers(facts: NodeFacts) -> Iterator[Diagnosis]:
    """Yield how accurate each engine's numbers are, and what would improve them."""
    for engine in facts.engines:
        if facts.version is None or not engine.up:
            continue
        known = accuracy(engine)
        level = Level.FINE if known.exact else Level.WARN
        what = f"{engine.engine}: {known.text}"
        yield Diagnosis(level, what, known.step, gain=known.gain, engine=engine.engine)


FINDINGS: tuple[Callable[[NodeFacts], Iterator[Diagnosis]], ...] = (
    daemon,
    devices,
    packages,
    rights,
    other_daemons,
    collectors,
    workers,
    engines,
    roles,
    numbers,
)


def examine(facts: NodeFacts) -> tuple[Diagnosis, ...]:
    """Return all findings, in the best order for reading."""
    return tuple(finding for look in FINDINGS for finding in look(facts))


def next_step(findings: tuple[Diagnosis, ...]) -> Diagnosis | None:
    """Return the finding whose step improves most; None if nothing is to be done."""
    open_ = [finding for finding in findings if finding.step]
    return max(open_, key=lambda finding: (finding.level.rank, finding.gain), default=None)
