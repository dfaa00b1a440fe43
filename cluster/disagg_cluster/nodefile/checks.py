"""Checks of a node file's values against each other and the node, and of its router."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from urllib.parse import urlsplit

from disagg_cluster.config import Restart, Router, Worker
from disagg_cluster.config.layout import GpuRequest, allocate
from disagg_cluster.config.problems import Finding, YamlPath, path_text
from disagg_cluster.config.router import ROUTER_NAME
from disagg_cluster.launch.router_command import OWN_ARGUMENTS
from disagg_cluster.nodefile.connections import check_control, check_ports, check_tls
from disagg_cluster.nodefile.draft import Draft, Host
from disagg_cluster.nodefile.peers import check_peers
from disagg_cluster.nodefile.worker_checks import check_worker, own_arguments
from disagg_exporter.devices.source import DeviceKind
from disagg_exporter.model import Device, Role

LONGEST_SOCKET_PATH_BYTES = 107
"""The longest path that a Unix socket can have."""


_ROUTER = ("router",)
_NEEDS_TWO = "power_of_two"


def check(draft: Draft, devices: Sequence[Device] | None, host: Host) -> tuple[Finding, ...]:
    """Return all inconsistencies between the values of a file.

    A value that could not be understood is not checked: its own problem is reported already.

    Args:
        draft: The file as far as it is understood.
        devices: The node's devices, as far as the file states them.
        host: The machine the file is for.
    """
    findings = [*_node(draft), *_hook(draft, host), *_names(draft), *_listed(draft)]
    findings += [*_frontends(draft), *_folders(draft, host), *check_tls(draft, host)]
    findings += [*_gpus(draft, devices), *_restarts(draft)]
    findings += check_control(draft, host)
    findings += [*check_ports(draft), *check_peers(draft), *check_router(draft, host)]
    for position, worker in draft.workers:
        findings += check_worker(draft, position, worker, host)
    return tuple(findings)


def _node(draft: Draft) -> Iterator[Finding]:
    config = draft.config
    simulated = config.devices is DeviceKind.SIM or not draft.sure("devices")
    if "sim_devices" in config.model_fields_set and not simulated:
        hint = "add devices: sim, or leave sim_devices out"
        yield Finding(("sim_devices",), "only means something with devices: sim", hint)
    if config.devices is DeviceKind.DCGM and config.dcgm is None and draft.sure("dcgm"):
        hint = "add dcgm: {url: http://127.0.0.1:9400}, the address of this node's"
        yield Finding(("devices",), "a dcgm-exporter is asked for, and none is named", hint)
    if config.run_folder is not None:
        longest = max((worker.name for worker in config.workers), key=len, default="")
        socket = config.run_folder / f"{longest}.sock"
        if len(os.fsencode(socket)) > LONGEST_SOCKET_PATH_BYTES:
            message = f"{socket} is too long for a Unix socket"
            hint = f"its path may have {LONGEST_SOCKET_PATH_BYTES} bytes"
            yield Finding(("run_dir",), message, hint)


def _hook(draft: Draft, host: Host) -> Iterator[Finding]:
    hook, at = draft.config.on_worker_failure, "on_worker_failure"
    if hook is None or not all(draft.sure(at, key) for key in ("command", "url")):
        return
    if (hook.command is None) is (hook.url is None):
        both = "both command and url are given" if hook.url else "neither command nor url is given"
        yield Finding((at,), both, "say one of them")
    if hook.command is not None and not host.executable(hook.command[0]):
        yield Finding((at, "command", 0), f"{hook.command[0]} cannot be run here", "")


def _folders(draft: Draft, host: Host) -> Iterator[Finding]:
    """Yield paths that are not folders, and folders that are named for two purposes."""
    config, taken = draft.config, dict[str, str]()
    places: list[tuple[YamlPath, str | None]] = [
        (("run_dir",), config.run_dir),
        (("bridges", "hpc_job_dir"), config.bridges.hpc_job_dir),
        (("attach", "dynamo_files"), config.attach.dynamo_files if config.attach else None),
    ]
    for path, folder in places:
        if folder is None or not draft.sure(*path):
            continue
        if why := host.why_no_folder(folder):
            yield Finding(path, f"{folder} {why}", "give the path of a folder")
        if (other := taken.setdefault(folder, path_text(path))) != path_text(path):
            yield Finding(path, f"{folder} is already the {other}", "each needs its own folder")


def _names(draft: Draft) -> Iterator[Finding]:
    taken: dict[str, int] = {}
    for position, worker in draft.workers:
        path = ("workers", position, "name")
        if draft.sure(*path) and (first := taken.setdefault(worker.name, position)) != position:
            yield Finding(path, f"{worker.name!r} is already the name of workers[{first}]")
    if draft.config.attach is None or not draft.sure("attach"):
        return
    places = {name: f"workers[{position}]" for name, position in taken.items()}
    for position, engine in enumerate(draft.config.attach.endpoints):
        place = f"attach.endpoints[{position}]"
        if engine.name and (other := places.setdefault(engine.name, place)) != place:
            at = ("attach", "endpoints", position, "name")
            yield Finding(at, f"{engine.name!r} is already the name of {other}")


def _listed(draft: Draft) -> Iterator[Finding]:
    """Yield listed engines that are workers: each would be counted twice."""
    attach = draft.config.attach
    if attach is None or not draft.sure("attach"):
        return
    workers: dict[tuple[str, int], tuple[int, Worker]] = {}
    for position, worker in draft.workers:
        if draft.sure("workers", position):
            for host in ("localhost", "127.0.0.1", worker.host, worker.probe_host):
                workers.setdefault((host, worker.port), (position, worker))
    first: dict[str, int] = {}
    for number, engine in enumerate(attach.endpoints):
        if (other := first.setdefault(engine.url, number)) != number:
            message = f"{engine.url} is already attach.endpoints[{other}]"
            yield Finding(("attach", "endpoints", number, "url"), message)
        parts = urlsplit(engine.url)
        found = workers.get((parts.hostname or "", parts.port or 80))
        if found is not None:
            position, worker = found
            message = f"{engine.url} is {worker.name} (workers[{position}])"
            hint = "leave it out: workers are measured anyhow"
            yield Finding(("attach", "endpoints", number, "url"), message, hint)


def _frontends(draft: Draft) -> Iterator[Finding]:
    """Yield frontends that are named twice: their requests would be counted twice."""
    first: dict[str, int] = {}
    for number, frontend in enumerate(draft.config.frontends):
        path = ("frontends", number, "url")
        url = frontend.url.rstrip("/")
        if draft.sure(*path) and (other := first.setdefault(url, number)) != number:
            yield Finding(path, f"{frontend.url} is already frontends[{other}]", "name each once")


def _gpus(draft: Draft, devices: Sequence[Device] | None) -> Iterator[Finding]:
    wanted = [
        GpuRequest(position, draft.label(position), worker.gpus)
        for position, worker in draft.workers
        if draft.sure("workers", position, "gpus") and (worker.gpu_count or draft.sure("devices"))
    ]
    yield from allocate(wanted, devices or ()).findings


def _restarts(draft: Draft) -> Iterator[Finding]:
    """Yield back-offs whose first wait is longer than their longest."""
    node = draft.config.restart
    places: list[tuple[YamlPath, Restart]] = [(("restart",), node)]
    for position, worker in draft.workers:
        if worker.restart is not None:
            places.append((("workers", position, "restart"), worker.restart))
    for path, said in places:
        first, most = "backoff_first_seconds", "backoff_max_seconds"
        given = [key for key in (most, first) if key in said.model_fields_set]
        sure = draft.sure("restart") and draft.sure(*path)
        whole = node.overridden_by(said)
        if given and sure and whole.backoff_first_seconds > whole.backoff_max_seconds:
            message = (
                f"the first wait of {whole.backoff_first_seconds:g} s is longer than the longest, "
                f"{whole.backoff_max_seconds:g} s"
            )
            hint = "" if len(given) == 2 else f"say {first if given[0] == most else most}, too"
            yield Finding((*path, given[0]), message, hint)


def check_router(draft: Draft, host: Host) -> Iterator[Finding]:
    """Yield what is wrong between the router and its engines."""
    router = draft.config.router
    if router is None or not draft.sure("router"):
        return
    if draft.sure("router", "args"):
        yield from own_arguments(router.args, OWN_ARGUMENTS, (*_ROUTER, "args"))
    if draft.sure("router", "python") and not host.executable(router.python):
        hint = "give the interpreter of the environment that holds vllm-router"
        yield Finding((*_ROUTER, "python"), f"{router.python} cannot be run here", hint)
    yield from _routed_elsewhere(draft, router)
    for position, worker in draft.workers:
        if worker.name == ROUTER_NAME and draft.sure("workers", position, "name"):
            message = f"{ROUTER_NAME!r} is what the router itself is called"
            yield Finding(("workers", position, "name"), message)
    known = ("name", "engine", "role", "model", "served_model_name", "kv_transfer")
    whole = draft.complete and all(
        draft.sure("workers", position, key) for position, _ in draft.workers for key in known
    )
    if whole:
        yield from _routed_engines(draft, router)


def _routed_elsewhere(draft: Draft, router: Router) -> Iterator[Finding]:
    """Yield remote engines that are named twice, or are workers of this file."""
    taken = {
        worker.url: f"{worker.name} (workers[{position}])"
        for position, worker in draft.workers
        if draft.sure("workers", position)
    }
    for key, urls in (("prefill", router.prefill), ("decode", router.decode)):
        for number, url in enumerate(urls):
            place = f"router.{key}[{number}]"
            if (other := taken.setdefault(url, place)) != place:
                hint = "each engine is named once, and the workers of this file not at all"
                yield Finding((*_ROUTER, key, number), f"{url} is already {other}", hint)


def _routed_engines(draft: Draft, router: Router) -> Iterator[Finding]:
    routed = [(place, w) for place, w in draft.workers if w.role in (Role.PREFILL, Role.DECODE)]
    for role, elsewhere in ((Role.PREFILL, router.prefill), (Role.DECODE, router.decode)):
        here = [worker for _, worker in routed if worker.role is role]
        count = len(here) + len(elsewhere)
        if not count:
            hint = f"add a {role} worker, or name one elsewhere with router.{role}"
            yield Finding(_ROUTER, f"the router has no {role} engine", hint)
        elif count == 1 and router.policy == _NEEDS_TWO:
            hint = "with one there is nothing to choose; use round_robin"
            yield Finding((*_ROUTER, "policy"), f"{_NEEDS_TWO} needs two {role} engines", hint)
    models = dict.fromkeys(worker.model_name for _, worker in routed)
    if len(models) > 1:
        hint = "it sends each request to any of them; give them one served_model_name"
        yield Finding(_ROUTER, f"its engines serve different models: {', '.join(models)}", hint)
    for place, worker in routed:
        yield from _routed_engine(router, place, worker)


def _routed_engine(router: Router, place: int, worker: Worker) -> Iterator[Finding]:
    if worker.engine == "sglang":
        hint = "leave the router out, and use SGLang's own"
        path = ("workers", place, "engine")
        yield Finding(path, f"{router.engine} cannot speak to an sglang engine", hint)
    kv = worker.kv_transfer
    if kv is None or worker.engine != "vllm" or kv.speaks(router.kv_connector):
        return
    other = "mooncake" if router.kv_connector == "nixl" else "nixl"
    if kv.speaks(other):
        message = f"{worker.name} moves its KV by {kv.connector}"
        yield Finding((*_ROUTER, "kv_connector"), message, f"use {other}")
