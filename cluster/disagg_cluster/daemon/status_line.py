"""The status line printed every second: the current split of GPU time, and arriving requests."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Protocol

from disagg_exporter.model import Phase, Snapshot

_LEAST_GPU_SECONDS = 1.0  # below this the share is absent (docs/accounting.md, A8)


class RequestCounts(Protocol):
    """A load generator's counts since its start."""

    @property
    def sent(self) -> int:
        """Requests sent."""

    @property
    def failed(self) -> int:
        """Requests that failed."""


@dataclass(frozen=True, slots=True)
class Line:
    """One second of the node; None where a number has no value (accounting A8)."""

    clock: str
    prefill_decode_ratio: float | None
    prefill_share_ratio: float | None
    busy_prefill_gpus: float
    busy_decode_gpus: float
    gpus: int
    on_cpu: bool
    workers_ready: int
    workers: int
    requests_per_second: float | None = None
    failed: int | None = None
    simulated: bool = False
    workers_paused: int = 0

    def text(self) -> str:
        """The line as text."""
        parts = [
            self.clock,
            f"P:D {_shown(self.prefill_decode_ratio)}",
            f"prefill share {_shown(self.prefill_share_ratio)}",
            f"busy {self.busy_prefill_gpus:.1f}P + {self.busy_decode_gpus:.1f}D"
            f" of {self.gpus} {'CPU engines' if self.on_cpu else 'GPUs'}",
        ]
        if self.workers_ready < self.workers:
            parts.append(f"ready {self.workers_ready} of {self.workers} workers")
        if self.workers_paused:
            parts.append(f"{self.workers_paused} paused")
        if self.requests_per_second is not None:
            parts.append(f"{self.requests_per_second:.0f} req/s")
        if self.failed:
            parts.append(f"{self.failed} failed")
        if self.simulated:
            parts.append("SIMULATED")
        return "  ".join(parts)

    def workers_text(self) -> str:
        """A short text with the number of serving workers."""
        if not self.workers:
            return "measuring engines that others start"
        paused = f", {self.workers_paused} paused" if self.workers_paused else ""
        return f"{self.workers_ready} of {self.workers} workers ready{paused}"

    def json(self) -> str:
        """The values as one line of JSON; null where there is no value."""
        return json.dumps(asdict(self))


def line(
    snapshot: Snapshot,
    clock: str,
    requests_per_second: float | None = None,
    failed: int | None = None,
) -> Line:
    """The status line of a snapshot; `clock` is the displayed time of day."""
    busy = dict.fromkeys(Phase, 0.0)
    for part in snapshot.busy:
        busy[part.phase] += part.gpus
    prefill, decode = busy[Phase.PREFILL], busy[Phase.DECODE]
    known = (prefill + decode) * snapshot.busy_window_seconds >= _LEAST_GPU_SECONDS
    return Line(
        clock=clock,
        prefill_decode_ratio=prefill / decode if known and decode > 0 else None,
        prefill_share_ratio=prefill / (prefill + decode) if known else None,
        busy_prefill_gpus=prefill,
        busy_decode_gpus=decode,
        gpus=len(snapshot.devices),
        on_cpu=bool(snapshot.devices) and all(d.is_pseudo for d in snapshot.devices),
        workers_ready=sum(worker.state == "ready" for worker in snapshot.workers),
        workers=len(snapshot.workers),
        requests_per_second=requests_per_second,
        failed=failed,
        simulated=snapshot.simulated,
        workers_paused=sum(worker.paused for worker in snapshot.workers),
    )


class LinePrinter:
    """Prints the line of each snapshot and computes the request rate since the previous one."""

    def __init__(
        self,
        echo: Callable[[str], None],
        *,
        as_json: bool = False,
        quiet: bool = False,
        requests: Callable[[], RequestCounts] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._echo = echo
        self._as_json = as_json
        self._quiet = quiet
        self._requests = requests
        self._clock = clock
        self._before: tuple[float, int] | None = None

    def snapshot(self, snapshot: Snapshot) -> None:
        """Print the line of a snapshot."""
        # Without engines there is nothing to print for people; programs still get their lines.
        nothing = not (snapshot.engines or snapshot.workers or snapshot.busy)
        if self._quiet or (nothing and not self._as_json):
            return
        rate = failed = None
        if self._requests is not None:
            now, counts = self._clock(), self._requests()
            if self._before is not None:
                rate = (counts.sent - self._before[1]) / max(now - self._before[0], 1e-3)
            self._before, failed = (now, counts.sent), counts.failed
        shown = line(snapshot, time.strftime("%H:%M:%S"), rate, failed)
        self._echo(shown.json() if self._as_json else shown.text())


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
