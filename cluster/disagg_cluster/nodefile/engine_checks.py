"""Whether this machine can really run what a node file launches: the engine, and its model.

Asks interpreters and looks into folders, which takes a moment: only before a start, and where
somebody asks for it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

from disagg_cluster.config import Worker
from disagg_cluster.config.values import is_model_path
from disagg_cluster.host.processes.interpreter import lacks_module
from disagg_cluster.nodefile.worker_checks import THIS_HOST, Host

_MODULES = {"vllm": "vllm", "sglang": "sglang"}
_OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")


def launching_host() -> Host:
    """The machine that we run on, asked whatever takes a moment to answer, too.

    It asks each interpreter once: what is installed meanwhile only another one knows.
    """
    lacks = cache(_lacks)

    def why_no_engine(worker: Worker) -> str:
        module = _MODULES.get(worker.engine)
        if module is None or not lacks(worker.python, module, worker.env.get("PYTHONPATH")):
            return ""
        return f"{worker.python} has no module {module}"

    return replace(THIS_HOST, why_no_engine=why_no_engine, why_no_model=why_no_model)


def _lacks(python: str, module: str, python_path: str | None) -> bool:
    more = {} if python_path is None else {"PYTHONPATH": python_path}
    return lacks_module(python, module, {**os.environ, **more})


def why_no_model(worker: Worker) -> str:
    """What keeps an engine from reading its model; empty if nothing is known to."""
    if worker.engine == "standin":
        return ""
    if is_model_path(worker.model):
        return _why_no_folder(Path(worker.model).expanduser())
    environment = {**os.environ, **worker.env}
    if _is_offline(environment) and not _is_cached(worker.model, environment):
        offline = next(name for name in _OFFLINE if _is_on(environment.get(name)))
        return f"{worker.model} is not in the hub's cache here, and {offline} keeps it from loading"
    return ""


def _why_no_folder(path: Path) -> str:
    if not path.is_dir():
        return ""  # a file of weights, or absent, which is said elsewhere
    config = path / "config.json"
    try:
        with config.open("rb") as opened:
            opened.read(1)
    except FileNotFoundError:
        return f"{path} holds no config.json: it is no folder of a model"
    except OSError as error:
        return f"{config} cannot be read by this user: {error.strerror}"
    return ""


def _is_offline(environment: Mapping[str, str]) -> bool:
    return any(_is_on(environment.get(name)) for name in _OFFLINE)


def _is_on(value: str | None) -> bool:
    return (value or "").upper() in ("1", "ON", "YES", "TRUE")


def _is_cached(model: str, environment: Mapping[str, str]) -> bool:
    home = environment.get("HF_HOME") or str(Path.home() / ".cache" / "huggingface")
    cache_dir = Path(environment.get("HF_HUB_CACHE") or Path(home) / "hub")
    return (cache_dir / f"models--{model.replace('/', '--')}").is_dir()
