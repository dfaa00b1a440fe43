"""Checks of one worker's values against each other."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping

from disagg_cluster.config import KvTransfer, Worker
from disagg_cluster.config.problems import Finding, YamlPath, nearest
from disagg_cluster.config.values import is_model_path
from disagg_cluster.config.worker import RoleArgs
from disagg_cluster.launch.command import (
    OTHER_SIZES,
    OWN_ARGUMENTS,
    OWN_VARIABLES,
    option_name,
    other_sizes,
)
from disagg_cluster.launch.sglang_command import transfer_backend
from disagg_cluster.nodefile.draft import Draft, Host
from disagg_exporter.devices.source import DeviceKind
from disagg_exporter.model import Role
from disagg_exporter.model.counted import counted

_SAME_IN_BOTH = frozenset({"--api-key", "--ssl-certfile", "--ssl-keyfile"})
"""Options that every client of an engine has to know."""


def check_worker(draft: Draft, position: int, worker: Worker, host: Host) -> Iterator[Finding]:
    """Yield inconsistencies between the values of the worker at this position in the file."""
    at = ("workers", position)
    if not draft.sure(*at, "engine"):
        return
    yield from _size(draft, worker, at)
    if draft.sure(*at, "env"):
        own = OWN_VARIABLES[worker.engine]
        for name in own.keys() & worker.env.keys():
            yield Finding((*at, "env", name), "set by the node itself", own[name])
    if draft.sure(*at, "role_args") and draft.sure(*at, "role"):
        yield from _role_args(worker, (*at, "role_args"))
    if worker.engine == "standin":
        if worker.role is Role.ENCODE:
            hint = "a stand-in plays prefill, decode or mixed"
            yield Finding((*at, "role"), "there is no stand-in for an encode engine", hint)
        return
    yield from check_kv(draft, worker, at)
    if draft.sure(*at, "args"):
        yield from own_arguments(worker.args, OWN_ARGUMENTS[worker.engine], (*at, "args"))
    yield from _files(draft, worker, at, host)


def own_arguments(args: Iterable[str], own: Mapping[str, str], at: YamlPath) -> Iterator[Finding]:
    """Yield arguments that a file may not give; `own` has the reasons, `at` is the list's path."""
    for place, name in enumerate(map(option_name, args)):
        if name in own:
            yield Finding((*at, place), f"{name} is set by the node itself", own[name])


def _role_args(worker: Worker, at: YamlPath) -> Iterator[Finding]:
    """Yield what may not depend on a worker's role, or depends on a role that it never has."""
    if worker.role not in (Role.PREFILL, Role.DECODE) and worker.role_args != RoleArgs():
        hint = "write them into args"
        yield Finding(at, f"a {worker.role} worker is given no other role", hint)
    for role in (Role.PREFILL, Role.DECODE):
        args = worker.role_args.of(role)
        yield from own_arguments(args, OWN_ARGUMENTS[worker.engine], (*at, role.value))
        for place, name in enumerate(map(option_name, args)):
            if name in OTHER_SIZES.get(worker.engine, {}) or name in _SAME_IN_BOTH:
                message = f"{name} has to be the same in both roles"
                yield Finding((*at, role.value, place), message, "write it into args")


def _size(draft: Draft, worker: Worker, at: YamlPath) -> Iterator[Finding]:
    """Yield a problem unless the model is spread over exactly the worker's GPUs."""
    sure = all(draft.sure(*at, key) for key in ("gpus", "tensor_parallel_size", "args"))
    if not sure or not worker.gpu_count or draft.config.devices is DeviceKind.CPU:
        return
    others = other_sizes(worker)
    wanted = worker.tp_size * math.prod(others.values())
    if wanted == worker.gpu_count:
        return
    factors = [f"tensor_parallel_size {worker.tp_size}"]
    factors += [f"{kind} parallel size {size}" for kind, size in others.items()]
    needs = f"needs {counted(wanted, 'GPU')}"
    message = f"{' x '.join(factors)} {needs}, but the worker has {worker.gpu_count}"
    given = worker.tensor_parallel_size is not None
    hint = "" if given else "tensor_parallel_size is the number of gpus when left out"
    yield Finding((*at, "tensor_parallel_size" if given else "gpus"), message, hint)


def _files(draft: Draft, worker: Worker, at: YamlPath, host: Host) -> Iterator[Finding]:
    if is_model_path(worker.model) and draft.sure(*at, "model") and not host.exists(worker.model):
        hint = "a name that does not begin with / . or ~ is looked up on the hub"
        yield Finding((*at, "model"), f"{worker.model} does not exist here", hint)
    elif draft.sure(*at, "model") and (why := host.why_no_model(worker)):
        yield Finding((*at, "model"), why)
    if draft.sure(*at, "python") and not host.executable(worker.python):
        hint = "give the interpreter of the environment that holds the engine"
        yield Finding((*at, "python"), f"{worker.python} cannot be run here", hint)
    elif draft.sure(*at, "python") and (why := host.why_no_engine(worker)):
        hint = f"give the interpreter of the environment that holds {worker.engine}"
        yield Finding((*at, "python"), why, hint)


VLLM_CONNECTORS = (
    *("NixlConnector", "NixlPullConnector", "NixlPushConnector", "MooncakeConnector"),
    *("MooncakeStoreConnector", "MoRIIOConnector", "P2pNcclConnector", "MultiConnector"),
    *("LMCacheConnectorV1", "LMCacheMPConnector", "FlexKVConnectorV1", "HF3FSKVConnector"),
    *("OffloadingConnector", "SimpleCPUOffloadConnector", "HiSparseConnector"),
    *("ExampleConnector", "ExampleHiddenStatesConnector", "DecodeBenchConnector"),
    *("SharedStorageConnector", "LMCacheConnector"),
)
"""The connectors that versions 0.10 to 0.33 of vLLM know by name."""

_WRONG_WAY = {Role.PREFILL: "kv_consumer", Role.DECODE: "kv_producer"}
_NOT_OF_SGLANG = ("role", "extra_config", "buffer_device")


def check_kv(draft: Draft, worker: Worker, at: YamlPath) -> Iterator[Finding]:
    """Yield problems of a real engine's KV transfer."""
    if not (draft.sure(*at, "role") and draft.sure(*at, "kv_transfer")):
        return
    wrong = _WRONG_WAY.get(worker.role)
    if worker.kv_transfer is None:
        if wrong:
            message = (
                f"a {worker.role} worker without kv_transfer: nothing would transfer its KV cache"
            )
            hint = "add kv_transfer: {connector: NixlConnector}, or make the role mixed"
            yield Finding(at, message, hint)
    elif worker.engine == "sglang":
        yield from _sglang(worker, worker.kv_transfer, (*at, "kv_transfer"))
    elif meant := _meant(worker.kv_transfer.connector):
        message = f"vllm has no connector {worker.kv_transfer.connector!r}"
        yield Finding((*at, "kv_transfer", "connector"), message, f"did you mean {meant!r}?")
    elif worker.kv_transfer.role is not None and worker.kv_transfer.role == wrong:
        right = "kv_producer" if worker.role is Role.PREFILL else "kv_consumer"
        message = f"{wrong} is the wrong way round for a {worker.role} worker"
        yield Finding((*at, "kv_transfer", "role"), message, f"use {right}, or leave it out")


def _meant(connector: str) -> str | None:
    """Return the vLLM connector that a misspelt name means.

    None for a name that vLLM knows, and for one similar to none: plugins add their connectors.
    """
    if connector in VLLM_CONNECTORS:
        return None
    known = {name.lower(): name for name in VLLM_CONNECTORS}
    word = connector.lower().replace("_", "").replace("-", "")
    begun = [name for lower, name in known.items() if len(word) > 3 and lower.startswith(word)]
    near = nearest(word, known)
    return begun[0] if begun else known[near] if near else None


def _sglang(worker: Worker, kv: KvTransfer, at: YamlPath) -> Iterator[Finding]:
    if worker.role not in _WRONG_WAY:
        hint = "leave it out, or make the role prefill or decode"
        yield Finding(at, f"means nothing to a {worker.role} worker of sglang", hint)
        return
    if transfer_backend(kv.connector) is None:
        message = f"sglang has no connector {kv.connector!r}"
        hint = "it has nixl (NixlConnector), mooncake (MooncakeConnector), mooncake_tcp, mori, "
        yield Finding((*at, "connector"), message, f"{hint}ascend")
    for key in _NOT_OF_SGLANG:
        if key in kv.model_fields_set:
            hint = "the worker's role says which way; all else is said with args"
            yield Finding((*at, key), "means nothing to sglang", hint)
