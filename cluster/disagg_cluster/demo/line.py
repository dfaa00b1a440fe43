"""The demo's line of each second: what the GPUs do now, and what arrives."""

from __future__ import annotations

import json
from dataclasses import dataclass

_LEAST_GPU_SECONDS = 1.0  # below this the share is absent (docs/accounting.md, A8)
_UNDEFINED = "\N{EN DASH}"


@dataclass(frozen=True, slots=True)
class Numbers:
    """What the metrics page and the load generator say at one instant.

    The two `busy_*` are the sums of `disagg_node_busy_gpus`, None where the page has none;
    `window_seconds` is the time they look back on.
    """

    t_seconds: float
    requests_total: int
    failures_total: int
    gpus: int
    busy_prefill_gpus: float | None
    busy_decode_gpus: float | None
    window_seconds: float


@dataclass(frozen=True, slots=True)
class Line:
    """One second of the demo; None where a number has no value (accounting A8)."""

    clock: str
    prefill_decode_ratio: float | None
    prefill_share_ratio: float | None
    busy_prefill_gpus: float | None
    busy_decode_gpus: float | None
    gpus: int
    requests_per_second: float | None
    failures: int

    def text(self) -> str:
        """The line for people."""
        busy = f"{_shown(self.busy_prefill_gpus, '.1f')}P + {_shown(self.busy_decode_gpus, '.1f')}D"
        parts = [
            self.clock,
            f"P:D {_shown(self.prefill_decode_ratio, '.2f')}",
            f"prefill share {_shown(self.prefill_share_ratio, '.2f')}",
            f"busy {busy} of {self.gpus} GPUs",
            f"req/s {_shown(self.requests_per_second, '.0f')}",
        ]
        if self.failures:
            parts.append(f"failed {self.failures}")
        return "  ".join(parts)

    def json(self) -> str:
        """The same values as one line of JSON; what has no value is null."""
        return json.dumps(
            {
                "clock": self.clock,
                "prefill_decode_ratio": self.prefill_decode_ratio,
                "prefill_share_ratio": self.prefill_share_ratio,
                "busy_prefill_gpus": self.busy_prefill_gpus,
                "busy_decode_gpus": self.busy_decode_gpus,
                "gpus": self.gpus,
                "requests_per_second": self.requests_per_second,
                "failures": self.failures,
            }
        )


def line(before: Numbers, now: Numbers, *, clock: str) -> Line:
    """The line of the second from `before` to `now`; `clock` is the time of day as shown."""
    prefill, decode = now.busy_prefill_gpus, now.busy_decode_gpus
    ratio = share = None
    if prefill is not None and decode is not None:
        ratio = prefill / decode if decode > 0 else None
        busy = prefill + decode
        share = prefill / busy if busy * now.window_seconds >= _LEAST_GPU_SECONDS else None
    passed = now.t_seconds - before.t_seconds
    return Line(
        clock=clock,
        prefill_decode_ratio=ratio,
        prefill_share_ratio=share,
        busy_prefill_gpus=prefill,
        busy_decode_gpus=decode,
        gpus=now.gpus,
        requests_per_second=(
            (now.requests_total - before.requests_total) / passed if passed > 0 else None
        ),
        failures=now.failures_total - before.failures_total,
    )


def _shown(value: float | None, form: str) -> str:
    return _UNDEFINED if value is None else format(value, form)
