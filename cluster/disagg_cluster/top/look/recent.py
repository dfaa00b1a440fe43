"""What a daemon itself remembers and says of its node."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from disagg_cluster.top.look.values import GpuLook, Look


def looks_of(told: Any) -> Iterator[Look]:
    """Looks of what a daemon tells at `/recent.json`, one for each device and moment, in order.

    Raises:
        LookupError, TypeError, ValueError, AttributeError: It is something else.
    """
    for device in told["devices"]:
        uses = {str(use): list(map(float, values)) for use, values in device["seconds"].items()}
        for number, at in enumerate(map(float, device["at_seconds"])):
            seconds = {use: values[number] for use, values in uses.items()}
            gpu = GpuLook("", str(device["gpu"]), seconds=seconds, watermark=at)
            yield Look(at, gpus=(gpu,))


def verdicts_of(told: Any) -> Mapping[tuple[str, str, str], tuple[str, ...]]:
    """What a daemon says at `/view.json` of each model's pools, by cluster, model and namespace.

    Raises:
        LookupError, TypeError, ValueError, AttributeError: It is something else.
    """
    return {
        ("", str(model["model_name"]), str(model["namespace"])): tuple(map(str, model["verdicts"]))
        for model in told["pools"]
    }
