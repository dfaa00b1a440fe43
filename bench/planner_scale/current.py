"""The engines' current metrics as samples of the last minutes: nothing older of them is read."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from bench.planner_scale.engines import EngineSample

_MINUTES = 5
# The second within the minute at which nodes are scraped.
_OFFSET_SECONDS = 7


def now_openmetrics(samples: Iterable[EngineSample], end_seconds: int) -> Iterator[str]:
    """Yield the samples in promtool's format, without the end: by family, then series."""
    times = _times(end_seconds)
    family = ""
    for each in sorted(samples, key=lambda one: one.name):
        if each.name != family:
            family = each.name
            yield f"# TYPE {family} gauge\n"
        labels = ",".join(f'{key}="{value}"' for key, value in each.labels.items())
        yield "".join(f"{family}{{{labels}}} {each.value:.10g} {time}\n" for time in times)


def now_json_lines(samples: Iterable[EngineSample], end_seconds: int) -> Iterator[bytes]:
    """Yield the samples in VictoriaMetrics' import format, a series a line."""
    times = [time * 1000 for time in _times(end_seconds)]
    for each in samples:
        metric = {"__name__": each.name, **each.labels}
        line = {"metric": metric, "values": [each.value] * _MINUTES, "timestamps": times}
        yield json.dumps(line).encode() + b"\n"


def _times(end_seconds: int) -> list[int]:
    first = end_seconds - 60 * _MINUTES + _OFFSET_SECONDS
    return [first + 60 * minute for minute in range(_MINUTES)]
