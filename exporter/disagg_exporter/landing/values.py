"""The content of the web page as JSON for programs: the same view, the same words."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import UTC, datetime

from disagg_exporter.landing.links import PageLinks
from disagg_exporter.landing.view import DeviceRow, EngineRow, NodeView, TimeBreakdown


def view_json(view: NodeView | None, links: PageLinks) -> str:
    """Return the view as one JSON object; times have date and zone, unknown values are null."""
    content: dict[str, object] = {"made_at": None} if view is None else _value(view)
    return json.dumps({**content, "links": asdict(links)})


def _value(view: NodeView) -> dict[str, object]:
    return {
        "made_at": _instant(view.taken_timestamp_seconds),
        "simulated": view.simulated,
        "window_seconds": view.window_seconds,
        "behind_seconds": view.behind_seconds,
        **_shares(view.split),
        "prefill_decode_ratio": view.split.prefill_decode_ratio,
        "gpus": [_device(row) for row in view.devices],
        "engines": [_engine(row) for row in view.engines],
        "pools": [asdict(pools) for pools in view.pools],
        "served": asdict(view.served[-1]) if view.served else None,
        "problems": [asdict(problem) for problem in view.problems],
    }


def _shares(split: TimeBreakdown | None) -> dict[str, object]:
    ratios = split.ratios if split is not None else {}
    occupancy = split.occupancy_ratio if split is not None else None
    uses = {use.value: ratio for use, ratio in ratios.items()} or None
    return {"use_ratios": uses, "occupancy_ratio": occupancy}


def _device(row: DeviceRow) -> dict[str, object]:
    return {
        "gpu": row.device.gpu,
        "device": row.device.device,
        "role": row.role.value,
        "engines": list(row.engines),
        **_shares(row.split),
    }


def _engine(row: EngineRow) -> dict[str, object]:
    worker = row.worker
    return {
        "engine": row.status.engine,
        "role": row.status.role.value,
        "state": row.status.state.value,
        "up": row.status.up,
        "used_ratio": row.capacity.used_ratio if row.capacity else None,
        "worker": None
        if worker is None
        else {
            "state": worker.state,
            "restarts": worker.restarts,
            "paused": worker.paused,
            "drained": worker.drained,
            "since": _instant(worker.since_timestamp_seconds),
            "deadline": _instant(worker.deadline_timestamp_seconds),
            "next_start": _instant(worker.next_start_timestamp_seconds),
            "cause": worker.cause,
            "last_lines": list(worker.last_lines),
        },
    }


def _instant(timestamp_seconds: float | None) -> str | None:
    if timestamp_seconds is None:
        return None
    return datetime.fromtimestamp(timestamp_seconds, UTC).isoformat(timespec="milliseconds")
