"""What only shows when the values of a node file are seen together, or beside the node itself."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from urllib.parse import urlsplit

from disagg_cluster.config import EngineTls, Restart, Worker
from disagg_cluster.config.layout import GpuRequest, allocate
from disagg_cluster.config.problems import Finding, YamlPath, path_text
from disagg_cluster.nodefile.control_checks import check_control
from disagg_cluster.nodefile.draft import Draft
from disagg_cluster.nodefile.peers import check_peers
from disagg_cluster.nodefile.ports import check_ports
from disagg_cluster.nodefile.router_checks import check_router
from disagg_cluster.nodefile.worker_checks import Host, check_worker
from disagg_exporter.devices.source import DeviceKind
from disagg_exporter.model import Device

LONGEST_SOCKET_PATH_BYTES = 107
"""The longest path that a Unix socket can have."""


def check(draft: Draft, devices: Sequence[Device] | None, host: Host) -> tuple[Finding, ...]:
    """Everything wrong between the values of a file.

    Nothing is concluded from a value that could not be understood: its own problem is reported
    already.

    Args:
        draft: The file as far as it is understood.
        devices: What the node has, as far as the file says.
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
    """Folders that are none, and one that is to be two things."""
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
    """Listed engines that are workers: each would be counted twice."""
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
    """Frontends that are named twice: their requests would be counted twice."""
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
    """Back-offs whose first wait is longer than their longest."""
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


_FILES = ("ca_file", "cert_file", "key_file")


def check_tls(draft: Draft, host: Host) -> Iterator[Finding]:
    """Everything wrong between the values of each `tls:`."""
    for path, tls in _tls_sections(draft):
        if draft.sure(*path):
            yield from _check(path, tls, host)
    yield from _plain(draft)
    for position, worker in draft.workers:
        path = ("workers", position, "tls")
        if not draft.sure("workers", position, "args"):
            continue
        if worker.certificate_file == "":
            args = ("workers", position, "args")
            yield Finding(args, "--ssl-certfile without a file", "give it the path of a PEM file")
        elif "tls" in worker.model_fields_set and worker.certificate_file is None:
            hint = "add --ssl-certfile to its args, or leave tls out"
            yield Finding(path, "only means something where the engine serves TLS", hint)


def _plain(draft: Draft) -> Iterator[Finding]:
    """Endpoints that are to be asked in plain HTTP, and yet to be known by something."""
    attach = draft.config.attach
    for number, engine in enumerate(attach.endpoints if attach else ()):
        path = ("attach", "endpoints", number)
        if engine.tls is not None and engine.url.startswith("http:") and draft.sure(*path):
            message, hint = "only means something for an https:// address", "write https://"
            yield Finding((*path, "tls"), message, hint)


def _tls_sections(draft: Draft) -> Iterator[tuple[YamlPath, EngineTls]]:
    attach = draft.config.attach
    if attach is not None:
        yield ("attach", "tls"), attach.tls
        for number, engine in enumerate(attach.endpoints):
            if engine.tls is not None:
                yield ("attach", "endpoints", number, "tls"), engine.tls
    for position, worker in draft.workers:
        yield ("workers", position, "tls"), worker.tls


def _check(path: YamlPath, tls: EngineTls, host: Host) -> Iterator[Finding]:
    if tls.key_file is not None and tls.cert_file is None:
        hint = "add cert_file, the certificate that it is the key of"
        yield Finding((*path, "key_file"), "a key without its certificate", hint)
    if tls.insecure and tls.ca_file is not None:
        hint = "leave one of them out"
        yield Finding((*path, "insecure"), "says the opposite of ca_file", hint)
    for key in _FILES:
        file: str | None = getattr(tls, key)
        if file is not None and not host.exists(file):
            yield Finding((*path, key), f"{file} is not there")
