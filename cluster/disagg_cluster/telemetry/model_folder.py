"""The size of a worker's model, where its folder is here to be read."""

from __future__ import annotations

import json
from pathlib import Path

from disagg_cluster.config import Worker
from disagg_exporter.capacity.compute_rates import size_from_config
from disagg_exporter.model import ModelSize

MAX_CONFIG_BYTES = 1024 * 1024
_OTHER_TYPES = ("--dtype", "--quantization", "-q", "--kv-cache-dtype", "--hf-overrides")
"""Arguments by which an engine loads something else than the folder says."""


def model_size(worker: Worker) -> ModelSize | None:
    """Return what `config.json` in the model's folder says; None where that is not the truth."""
    if worker.engine == "standin" or any(_named(argument) for argument in worker.args):
        return None
    try:
        with (Path(worker.model) / "config.json").open("rb") as file:
            config = json.loads(file.read(MAX_CONFIG_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    return size_from_config(config) if isinstance(config, dict) else None


def _named(argument: str) -> bool:
    return argument.partition("=")[0].replace("_", "-") in _OTHER_TYPES
