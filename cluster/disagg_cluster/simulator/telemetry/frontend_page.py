"""The metrics page of a simulated frontend, as of Dynamo 1.6.1, about users' requests.

Only the families on the outcome of requests; times are from a request's arrival there.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate

from disagg_cluster.simulator.engine.batch import Request
from disagg_cluster.simulator.telemetry.page import number
from disagg_cluster.simulator.telemetry.page_counters import HistogramCounter
from disagg_exporter.model import SECOND_NS

# The frontend's own bounds.
_FIRST_TOKEN = (
    *(0.0, 0.0022, 0.0047, 0.01, 0.022, 0.047, 0.1, 0.22, 0.47),
    *(1.0, 2.2, 4.7, 10.0, 22.0, 48.0, 100.0, 220.0, 480.0),
)
_DURATION = (0.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 130.0, 260.0, 510.0)
_PROMPT = (
    *(0.0, 100.0, 210.0, 430.0, 870.0, 1800.0),
    *(3600.0, 7400.0, 15000.0, 31000.0, 63000.0, 130000.0),
)
_OUTPUT = (0.0, 100.0, 210.0, 430.0, 880.0, 1800.0, 3700.0, 7600.0, 16000.0, 32000.0)


class FrontendPage:
    """Counts of a frontend since the start of the simulation.

    Args:
        model_name: The model it serves.
        pending: The requests that it holds before an engine has them; None for a router that does
            not report them.
    """

    def __init__(self, model_name: str, pending: Callable[[], int] | None = None) -> None:
        self._model_name = model_name
        self._pending = pending
        self._arrived = 0
        self._ended = {"success": 0, "error": 0}
        self._histograms = {
            "time_to_first_token_seconds": HistogramCounter(_FIRST_TOKEN),
            "request_duration_seconds": HistogramCounter(_DURATION),
            "input_sequence_tokens": HistogramCounter(_PROMPT),
            "output_sequence_tokens": HistogramCounter(_OUTPUT),
        }
        self._bounds = {
            name: (*map(number, each.bounds), "+Inf") for name, each in self._histograms.items()
        }

    def arrived(self) -> None:
        """Count an arriving request."""
        self._arrived += 1

    def first_token(self, request: Request, now_ns: int) -> None:
        """Count the first token that a user receives."""
        self._observe("time_to_first_token_seconds", (now_ns - request.arrived_ns) / SECOND_NS)

    def ended(self, request: Request, now_ns: int, *, failed: bool) -> None:
        """Count a request that ends."""
        self._ended["error" if failed else "success"] += 1
        self._observe("request_duration_seconds", (now_ns - request.arrived_ns) / SECOND_NS)
        self._observe("input_sequence_tokens", request.prompt_tokens)
        if not failed:
            self._observe("output_sequence_tokens", request.output_tokens)

    def render(self) -> str:
        """Return the page in text format 0.0.4; all zeros before the first request."""
        lines = []
        own = f'model="{self._model_name}"'
        head = f'endpoint="completions",{own},request_type="stream"'
        lines.append(_sample("requests_started_total", head, self._arrived))
        for status, count in self._ended.items():
            lines.append(_sample("requests_total", f'{head},status="{status}"', count))
        if self._pending is not None:
            lines.append(_sample("router_queue_pending_requests", own, self._pending()))
        for name, histogram in self._histograms.items():
            counts = list(accumulate(histogram.counts))
            for bound, count in zip(self._bounds[name], counts, strict=True):
                lines.append(_sample(f"{name}_bucket", f'{own},le="{bound}"', count))
            lines.append(_sample(f"{name}_sum", own, histogram.total))
            lines.append(_sample(f"{name}_count", own, counts[-1]))
        return "".join(lines)

    def _observe(self, name: str, value: float) -> None:
        self._histograms[name].observe(value)


def _sample(name: str, labels: str, value: float) -> str:
    return f"dynamo_frontend_{name}{{{labels}}} {number(value)}\n"
