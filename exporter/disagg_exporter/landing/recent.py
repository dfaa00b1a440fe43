"""What each device did in the last ten minutes, as JSON: the initial data of a live view."""

from __future__ import annotations

import json
from math import floor

from disagg_exporter.landing.history import AccountHistory
from disagg_exporter.model import Snapshot, Use

SPAN_SECONDS = 600.0
STEP_SECONDS = 5.0


def recent_json(history: AccountHistory, snapshot: Snapshot | None) -> str:
    """Return each device's committed seconds by use at even times, up to its watermark.

    They are the values of `disagg_gpu_phase_seconds_total` and
    `disagg_gpu_unobserved_seconds_total` at those times, cut to milliseconds so that none exceeds
    later values. Times are Unix times.
    """
    devices = []
    for account in snapshot.accounts if snapshot is not None else ():
        moments = history.hour.moments(account, SPAN_SECONDS, STEP_SECONDS)
        offset = snapshot.wall_offset_seconds if snapshot is not None else 0.0
        seconds = {
            use.value: [floor(1000 * row[place]) / 1000 for _, row in moments]
            for place, use in enumerate(Use)
        }
        at = [round(moment + offset, 3) for moment, _ in moments]
        devices.append({"gpu": account.device.gpu, "at_seconds": at, "seconds": seconds})
    return json.dumps({"devices": devices}, separators=(",", ":"))
