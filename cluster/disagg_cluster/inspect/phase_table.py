"""The table of `disagg-node phases`: who is on which device, in which role, doing what now."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

from disagg_cluster.host.columns import columns
from disagg_cluster.inspect.views import DeviceView, EngineView, NodePage

_TITLES = (
    "GPU",
    "ENGINE",
    "ROLE",
    "WHY",
    "CONFIDENCE",
    "MEASURED BY",
    "PREFILL",
    "DECODE",
    "STATE",
)


@dataclass(frozen=True, slots=True)
class PhaseRow:
    """One engine on one device, or one of them alone; None where nothing is known.

    The ratios are shares of the device's observed time of late, whatever used it.
    """

    gpu: str
    device: str
    engine: str = ""
    role: str = ""
    why: str = ""
    confidence: str = ""
    method: str = ""
    state: str = ""
    model_name: str = ""
    pod: str = ""
    namespace: str = ""
    prefill_ratio: float | None = None
    decode_ratio: float | None = None
    busy_ratio: float | None = None


def rows_of(page: NodePage, before: NodePage | None = None) -> tuple[PhaseRow, ...]:
    """The rows of a node's page; with an earlier one, what was done in between."""
    earlier = {device.gpu: device for device in before.devices} if before else {}
    by_gpu: dict[str, list[EngineView]] = {}
    for engine in page.engines:
        for gpu in engine.gpus:
            by_gpu.setdefault(gpu, []).append(engine)
    rows: list[PhaseRow] = []
    for device in page.devices:
        ratios = occupancy(earlier.get(device.gpu), device)
        engines: Sequence[EngineView | None] = by_gpu.get(device.gpu) or [None]
        rows.extend(row_of(device, engine, ratios) for engine in engines)
    rows.extend(row_of(None, engine, {}) for engine in page.engines if not engine.gpus)
    return tuple(rows)


def occupancy(before: DeviceView | None, after: DeviceView) -> Mapping[str, float]:
    """Shares of a device's observed time between two pages, by use; empty if none has passed."""
    if before is None:
        return {}
    deltas = {use: s - before.seconds.get(use, 0.0) for use, s in after.seconds.items()}
    # A counter that fell is of a daemon that began anew.
    if any(delta < 0 for delta in deltas.values()):
        return {}
    observed = sum(delta for use, delta in deltas.items() if use != "unobserved")
    return {use: delta / observed for use, delta in deltas.items()} if observed > 0 else {}


def moved(before: NodePage, after: NodePage) -> bool:
    """Whether every device's account advanced between two pages."""
    earlier = {device.gpu: device.watermark for device in before.devices}
    return all(device.watermark != earlier.get(device.gpu) for device in after.devices)


def as_text(rows: Iterable[PhaseRow]) -> str:
    """The table for people."""
    return columns([_TITLES, *map(_cells, rows)])


def as_json(rows: Iterable[PhaseRow], *, indent: int | None = 2) -> str:
    """The same values as a JSON list; what is not known is null."""
    return json.dumps([asdict(row) for row in rows], indent=indent)


def row_of(
    device: DeviceView | None, engine: EngineView | None, ratios: Mapping[str, float]
) -> PhaseRow:
    """One row; the ratios are those of the device."""
    place = (device.gpu, device.device) if device else ("", "")
    known = (ratios.get("prefill"), ratios.get("decode"))
    if engine is None:
        return PhaseRow(*place, prefill_ratio=known[0], decode_ratio=known[1])
    return PhaseRow(
        *place,
        engine=engine.engine,
        role=engine.role,
        why=engine.source,
        confidence=engine.confidence,
        method=engine.method,
        state=_state(engine),
        model_name=engine.model_name,
        pod=engine.pod,
        namespace=engine.namespace,
        prefill_ratio=known[0],
        decode_ratio=known[1],
    )


def _state(engine: EngineView) -> str:
    """How an engine stands, in a word or two."""
    if engine.follows is not None:
        return f"follower of {engine.follows}" if engine.follows else "follower"
    if engine.registered is False:
        return "not registered"
    return "up" if engine.up else "does not answer"


def _cells(row: PhaseRow) -> tuple[str, ...]:
    prefill, decode = _percent(row.prefill_ratio), _percent(row.decode_ratio)
    if row.busy_ratio is not None and row.prefill_ratio is None:
        # The phases are not known apart: only that something ran.
        prefill, decode = f"busy {row.busy_ratio:.0%}", ""
    cells = (
        *(f"{row.device} {row.gpu}".strip(), row.engine, row.role, row.why, row.confidence),
        *(row.method, prefill, decode, row.state),
    )
    return tuple(cell or "-" for cell in cells)


def _percent(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.0%}"
