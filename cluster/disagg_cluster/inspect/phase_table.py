"""The table of `disagg-node phases`: which engine is on which device, its role and activity."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from disagg_cluster.host.columns import columns
from disagg_cluster.host.foreign_json import parse_foreign
from disagg_cluster.inspect.views import DeviceView, EngineView, NodePage
from disagg_exporter.errors import DisaggError, escaped

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


_NARROW_TITLES = ("GPU", "ENGINE", "ROLE", "PREFILL", "DECODE", "STATE")
_NARROW_CHARACTERS = {"GPU": 12, "ENGINE": 21, "STATE": 15}


class NotOurViewError(DisaggError):
    """The data is not a daemon's report on its devices."""


@dataclass(frozen=True, slots=True)
class NodeShares:
    """Shares of the devices' observed time by use, over the same minute.

    `worker_states` are those of the daemon's own workers that are not ready, by engine. `verdicts`
    are the verdicts on each model's pools in words, by its name and the namespace of its engines;
    `used_ratios` the used capacity that they are about, by role.
    """

    by_gpu: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    made_at: str = ""
    window_seconds: float = 0.0
    behind_seconds: float = 0.0
    worker_states: Mapping[str, str] = field(default_factory=dict)
    verdicts: Mapping[tuple[str, str], tuple[str, ...]] = field(default_factory=dict)
    used_ratios: Mapping[tuple[str, str], Mapping[str, float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PhaseRow:
    """One engine on one device, or one of them alone; None where nothing is known.

    The ratios are shares of the device's recent observed time, whatever used it.
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


def rows_of(page: NodePage, shares: NodeShares | None = None) -> tuple[PhaseRow, ...]:
    """Return the rows of a node's page, with the recent shares of its devices."""
    booked = shares or NodeShares()
    ratios, states = booked.by_gpu, booked.worker_states
    by_gpu: dict[str, list[EngineView]] = {}
    for engine in page.engines:
        for gpu in engine.gpus:
            by_gpu.setdefault(gpu, []).append(engine)
    rows: list[PhaseRow] = []
    for device in page.devices:
        engines: Sequence[EngineView | None] = by_gpu.get(device.gpu) or [None]
        rows.extend(row_of(device, engine, ratios.get(device.gpu, {})) for engine in engines)
    rows.extend(row_of(None, engine, {}) for engine in page.engines if not engine.gpus)
    return tuple(replace(row, state=states.get(row.engine, row.state)) for row in rows)


def read_shares(text: bytes) -> NodeShares:
    """Parse a daemon's report on the last committed minute (`/view.json`).

    Raises:
        NotOurViewError: It is something else.
    """
    try:
        view = parse_foreign(text)
        if view["made_at"] is None:
            return NodeShares()
        by_gpu = {gpu["gpu"]: _observed(gpu["use_ratios"] or {}) for gpu in view["gpus"]}
        window, behind = float(view["window_seconds"]), float(view["behind_seconds"])
        workers = ((one["engine"], one.get("worker")) for one in view.get("engines", ()))
        states = {engine: worker["state"] for engine, worker in workers if worker}
        waiting = {engine: state for engine, state in states.items() if state != "ready"}
        models = {
            (str(model["model_name"]), str(model["namespace"])): model
            for model in view.get("pools", ())
        }
        verdicts = {key: tuple(map(str, model["verdicts"])) for key, model in models.items()}
        used = {key: _used(model.get("pools", ())) for key, model in models.items()}
        return NodeShares(by_gpu, view["made_at"], window, behind, waiting, verdicts, used)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise NotOurViewError("what it says at /view.json is not understood") from None


def _used(pools: Iterable[Mapping[str, Any]]) -> Mapping[str, float]:
    """Return the used capacity of each pool of which it is known, by role."""
    return {
        str(pool["role"]): float(pool["used_ratio"])
        for pool in pools
        if pool["used_ratio"] is not None
    }


def _observed(ratios: Mapping[str, float]) -> Mapping[str, float]:
    """Return shares of the observed time; empty if none was observed."""
    observed = 1.0 - ratios.get("unobserved", 0.0)
    if not ratios or observed <= 0:
        return {}
    return {use: ratio / observed for use, ratio in ratios.items() if use != "unobserved"}


def as_text(
    rows: Iterable[PhaseRow],
    *,
    wide: bool = False,
    painted: Callable[[str, str], str] = lambda _state, shown: shown,
) -> str:
    """Return the table as text: within 80 columns, or `wide` with the sources of everything.

    `painted` colours the displayed text of a state for a terminal.
    """
    titles, cells_of = (_TITLES, _cells) if wide else (_NARROW_TITLES, _narrow_cells)
    lines = ((row.state, cells_of(row)) for row in rows)
    return columns([titles, *((*cells[:-1], painted(state, cells[-1])) for state, cells in lines)])


def verdict_text(shares: NodeShares) -> str:
    """Return the verdicts on the pools, one line per model; empty where nothing is known.

    With what they are about: a pool may be busy, as the table shows, and far from full.
    """
    verdicts = {
        model: escaped("; ".join(words) + _used_text(shares.used_ratios.get(model, {})))
        for model, words in shares.verdicts.items()
        if words
    }
    if len(verdicts) == 1:
        return "".join(verdicts.values())
    named = (
        ("/".join(filter(None, (space, name))), text) for (name, space), text in verdicts.items()
    )
    return "\n".join(f"{escaped(name) or 'model not known'}: {text}" for name, text in named)


def _used_text(ratios: Mapping[str, float]) -> str:
    used = ", ".join(f"{role} {ratio:.0%}" for role, ratio in ratios.items())
    return f"; capacity used: {used}" if used else ""


def when_text(shares: NodeShares) -> str:
    """Return the time span of the shares as text."""
    if not shares.made_at or shares.window_seconds <= 0:
        return "nothing was attributed yet"
    return f"over {shares.window_seconds:.0f} s, until {shares.behind_seconds:.0f} s ago"


def as_json(
    rows: Iterable[PhaseRow], shares: NodeShares | None = None, *, indent: int | None = 2
) -> str:
    """Return the same values as a JSON list; what is not known is null.

    `made_at` is an instant with date and zone, `window_seconds` the accounted time before it,
    `verdicts` the verdicts on the pools of the row's model.
    """
    booked = shares or NodeShares()
    when = {
        "made_at": booked.made_at or None,
        "window_seconds": booked.window_seconds if booked.made_at else None,
    }
    verdicts = booked.verdicts
    listed = (
        asdict(row) | {"verdicts": verdicts.get((row.model_name, row.namespace), ())} | when
        for row in rows
    )
    return json.dumps(list(listed), indent=indent)


def row_of(
    device: DeviceView | None, engine: EngineView | None, ratios: Mapping[str, float]
) -> PhaseRow:
    """Return one row; the ratios are those of the device."""
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
    """Return the state of an engine, in a word or two."""
    if engine.follows is not None:
        return f"follower of {engine.follows}" if engine.follows else "follower"
    if engine.registered is False:
        return "not registered"
    return "ready" if engine.up else "no answer"


def _cells(row: PhaseRow) -> tuple[str, ...]:
    prefill, decode = _percent(row.prefill_ratio), _percent(row.decode_ratio)
    if row.busy_ratio is not None and row.prefill_ratio is None:
        # The phases cannot be separated: only that something ran is known.
        prefill, decode = f"busy {row.busy_ratio:.0%}", ""
    cells = (
        *(f"{row.device} {row.gpu}".strip(), row.engine, row.role, row.why, row.confidence),
        *(row.method, prefill, decode, row.state),
    )
    # The daemon asked may be another host's, and its page is not ours to trust.
    return tuple(escaped(cell) or "-" for cell in cells)


def _narrow_cells(row: PhaseRow) -> tuple[str, ...]:
    cells = _cells(row)
    device = row.device if row.device and row.device != "cpu" else row.gpu
    narrow = (escaped(device) or "-", cells[1], cells[2], cells[6], cells[7], cells[8])
    return tuple(
        _cut(cell, _NARROW_CHARACTERS.get(title, len(cell)))
        for title, cell in zip(_NARROW_TITLES, narrow, strict=True)
    )


def _cut(text: str, characters: int) -> str:
    """Return its beginning and its end: names of pods differ at the end."""
    if len(text) <= characters:
        return text
    end = characters // 2
    return f"{text[: characters - end - 1]}…{text[-end:]}"


def _percent(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.0%}"
