"""What is wrong with one worker of a node file once its values are seen together."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from disagg_cluster.command import OWN_ARGUMENTS, OWN_VARIABLES
from disagg_cluster.config import Worker
from disagg_cluster.nodefile.draft import Draft
from disagg_cluster.problems import Finding, YamlPath
from disagg_exporter.devices import DeviceKind
from disagg_exporter.model import Role

_OTHER_SIZES = {
    "--pipeline-parallel-size": "pipeline",
    "-pp": "pipeline",
    "--data-parallel-size": "data",
    "-dp": "data",
}
"""vLLM's arguments that multiply the number of GPUs it needs."""

_WRONG_WAY = {Role.PREFILL: "kv_consumer", Role.DECODE: "kv_producer"}


@dataclass(frozen=True, slots=True)
class Host:
    """What the checks ask the machine: is a path there, can a program be run."""

    exists: Callable[[str], bool]
    executable: Callable[[str], bool]


THIS_HOST = Host(
    exists=lambda path: Path(path).exists(),
    executable=lambda program: shutil.which(program) is not None,
)
"""The machine that we run on."""


def check_worker(draft: Draft, position: int, host: Host) -> Iterator[Finding]:
    """Everything wrong between the values of the worker at this place of the file."""
    worker = next(worker for place, worker in draft.workers if place == position)
    at = ("workers", position)
    yield from _size(draft, worker, at)
    if draft.sure(*at, "env"):
        for name in OWN_VARIABLES.keys() & worker.env.keys():
            yield Finding((*at, "env", name), "set by the node itself", OWN_VARIABLES[name])
    if not draft.sure(*at, "engine"):
        return
    if worker.engine == "standin":
        if worker.role is Role.ENCODE:
            hint = "a stand-in plays prefill, decode or mixed"
            yield Finding((*at, "role"), "there is no stand-in for an encode engine", hint)
        return
    yield from _kv_transfer(draft, worker, at)
    if draft.sure(*at, "args"):
        for place, name in enumerate(map(_option, worker.args)):
            if name in OWN_ARGUMENTS:
                path = (*at, "args", place)
                yield Finding(path, f"{name} is set by the node itself", OWN_ARGUMENTS[name])
    yield from _files(draft, worker, at, host)


def _size(draft: Draft, worker: Worker, at: YamlPath) -> Iterator[Finding]:
    """Whether the model is spread over exactly the worker's GPUs."""
    sure = all(draft.sure(*at, key) for key in ("gpus", "tensor_parallel_size", "args"))
    if not sure or not worker.gpu_count or draft.config.devices is DeviceKind.CPU:
        return
    others = _other_sizes(worker.args)
    wanted = worker.tp_size * math.prod(others.values())
    if wanted == worker.gpu_count:
        return
    factors = [f"tensor_parallel_size {worker.tp_size}"]
    factors += [f"{kind} parallel size {size}" for kind, size in others.items()]
    needs = f"needs {wanted} GPU{'s' if wanted > 1 else ''}"
    message = f"{' x '.join(factors)} {needs}, but the worker has {worker.gpu_count}"
    given = worker.tensor_parallel_size is not None
    hint = "" if given else "tensor_parallel_size is the number of gpus when left out"
    yield Finding((*at, "tensor_parallel_size" if given else "gpus"), message, hint)


def _other_sizes(args: tuple[str, ...]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for argument, following in zip(args, (*args[1:], ""), strict=False):
        kind = _OTHER_SIZES.get(_option(argument))
        value = argument.partition("=")[2] or following
        if kind and value.isdecimal() and int(value) > 1:
            sizes[kind] = int(value)
    return sizes


def _option(argument: str) -> str:
    """The name of an option however vLLM lets it be written: `--a_b=1`, `--a-b.c`."""
    if not argument.startswith("-"):
        return ""
    return argument.partition("=")[0].partition(".")[0].replace("_", "-")


def _kv_transfer(draft: Draft, worker: Worker, at: YamlPath) -> Iterator[Finding]:
    if not (draft.sure(*at, "role") and draft.sure(*at, "kv_transfer")):
        return
    wrong = _WRONG_WAY.get(worker.role)
    if worker.kv_transfer is None:
        if wrong:
            message = f"a {worker.role} worker without kv_transfer: nobody would move its KV cache"
            hint = "add kv_transfer: {connector: NixlConnector}, or make the role mixed"
            yield Finding(at, message, hint)
    elif worker.kv_transfer.role is not None and worker.kv_transfer.role == wrong:
        right = "kv_producer" if worker.role is Role.PREFILL else "kv_consumer"
        message = f"{wrong} is the wrong way round for a {worker.role} worker"
        yield Finding((*at, "kv_transfer", "role"), message, f"use {right}, or leave it out")


def _files(draft: Draft, worker: Worker, at: YamlPath, host: Host) -> Iterator[Finding]:
    is_path = worker.model.startswith(("/", ".", "~"))
    if is_path and draft.sure(*at, "model") and not host.exists(worker.model):
        hint = "a name that does not begin with / . or ~ is looked up on the hub"
        yield Finding((*at, "model"), f"{worker.model} does not exist here", hint)
    if draft.sure(*at, "python") and not host.executable(worker.python):
        hint = "give the interpreter of the environment that holds the engine"
        yield Finding((*at, "python"), f"{worker.python} cannot be run here", hint)
