"""What is wrong with one worker of a node file once its values are seen together."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from disagg_cluster.config import Worker
from disagg_cluster.config.problems import Finding, YamlPath
from disagg_cluster.config.values import is_model_path
from disagg_cluster.host.files.named_paths import why_no_folder
from disagg_cluster.launch.command import OWN_ARGUMENTS, OWN_VARIABLES
from disagg_cluster.launch.sizes import option_name, other_sizes
from disagg_cluster.nodefile.draft import Draft
from disagg_cluster.nodefile.kv import check_kv
from disagg_exporter.devices.source import DeviceKind
from disagg_exporter.model import Role


@dataclass(frozen=True, slots=True)
class Host:
    """What the checks ask the machine: is a path there, can a program be run.

    `why_no_folder` returns what keeps a path from being a folder, or from becoming one.
    """

    exists: Callable[[str], bool]
    executable: Callable[[str], bool]
    why_no_folder: Callable[[str], str] = lambda _path: ""


THIS_HOST = Host(
    exists=lambda path: Path(path).exists(),
    executable=lambda program: shutil.which(program) is not None,
    why_no_folder=lambda path: why_no_folder(Path(path)),
)
"""The machine that we run on."""

ELSEWHERE = Host(exists=lambda _path: True, executable=lambda _program: True)
"""A machine that we cannot ask, and which has whatever a file says that it has."""


def check_worker(draft: Draft, position: int, worker: Worker, host: Host) -> Iterator[Finding]:
    """Everything wrong between the values of the worker at this place of the file."""
    at = ("workers", position)
    if not draft.sure(*at, "engine"):
        return
    yield from _size(draft, worker, at)
    if draft.sure(*at, "env"):
        own = OWN_VARIABLES[worker.engine]
        for name in own.keys() & worker.env.keys():
            yield Finding((*at, "env", name), "set by the node itself", own[name])
    if worker.engine == "standin":
        if worker.role is Role.ENCODE:
            hint = "a stand-in plays prefill, decode or mixed"
            yield Finding((*at, "role"), "there is no stand-in for an encode engine", hint)
        return
    yield from check_kv(draft, worker, at)
    if draft.sure(*at, "args"):
        own = OWN_ARGUMENTS[worker.engine]
        for place, name in enumerate(map(option_name, worker.args)):
            if name in own:
                path = (*at, "args", place)
                yield Finding(path, f"{name} is set by the node itself", own[name])
    yield from _files(draft, worker, at, host)


def _size(draft: Draft, worker: Worker, at: YamlPath) -> Iterator[Finding]:
    """Whether the model is spread over exactly the worker's GPUs."""
    sure = all(draft.sure(*at, key) for key in ("gpus", "tensor_parallel_size", "args"))
    if not sure or not worker.gpu_count or draft.config.devices is DeviceKind.CPU:
        return
    others = other_sizes(worker)
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


def _files(draft: Draft, worker: Worker, at: YamlPath, host: Host) -> Iterator[Finding]:
    if is_model_path(worker.model) and draft.sure(*at, "model") and not host.exists(worker.model):
        hint = "a name that does not begin with / . or ~ is looked up on the hub"
        yield Finding((*at, "model"), f"{worker.model} does not exist here", hint)
    if draft.sure(*at, "python") and not host.executable(worker.python):
        hint = "give the interpreter of the environment that holds the engine"
        yield Finding((*at, "python"), f"{worker.python} cannot be run here", hint)
