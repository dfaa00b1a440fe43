"""What a daemon reports about its node besides its metrics page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from disagg_cluster.top.readings.values import GpuReading, LiveReading


def readings_of(content: Any) -> Iterator[LiveReading]:
    """Readings from a daemon's `/recent.json`, one per device and moment, in order.

    Raises:
        LookupError, TypeError, ValueError, AttributeError: The content has another form.
    """
    for device in content["devices"]:
        uses = {str(use): list(map(float, values)) for use, values in device["seconds"].items()}
        for number, at in enumerate(map(float, device["at_seconds"])):
            seconds = {use: values[number] for use, values in uses.items()}
            gpu = GpuReading("", str(device["gpu"]), seconds=seconds, watermark=at)
            yield LiveReading(at, gpus=(gpu,))


def verdicts_of(content: Mapping[str, Any]) -> Mapping[tuple[str, str, str], tuple[str, ...]]:
    """Verdicts on each model's pools from `/view.json`, by cluster, model and namespace.

    Empty if the content has another form.
    """
    try:
        return {
            ("", str(each["model_name"]), str(each["namespace"])): tuple(map(str, each["verdicts"]))
            for each in content["pools"]
        }
    except (LookupError, TypeError):
        return {}
