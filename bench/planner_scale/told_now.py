"""What engines tell now, as samples of the last minutes: nothing older of it is read."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from bench.planner_scale.engines import EngineSample

_MINUTES = 5
# The second within the minute at which nodes are scraped.
_OFFSET_SECONDS = 7


def now_openmetrics(samples: Iterable[EngineSample], end_seconds: int) -> Iterator[str]:
    """As promtool wants it, but for its end: families whole, and in each the series whole."""
    times = _times(end_seconds)
    family = ""
    for each in sorted(samples, key=lambda one: one.name):
        if each.name != family:
            family = each.name
            yield f"# TYPE {family} gauge\n"
        labels = ",".join(f'{key}="{value}"' for key, value in each.labels.items())
        yield "".join(f"{family}{{{labels}}} {each.value:.10g} {time}\n" for time in times)


def now_json_lines(samples: Iterable[EngineSample], end_seconds: int) -> Iterator[bytes]:
    """As VictoriaMetrics imports it, a series a line."""
    times = [time * 1000 for time in _times(end_seconds)]
    for each in samples:
        metric = {"__name__": each.name, **each.labels}
        line = {"metric": metric, "values": [each.value] * _MINUTES, "timestamps": times}
        yield json.dumps(line).encode() + b"\n"


def _times(end_seconds: int) -> list[int]:
    first = end_seconds - 60 * _MINUTES + _OFFSET_SECONDS
    return [first + 60 * minute for minute in range(_MINUTES)]
