"""The engines of a window: identities, observations and GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from disagg_cluster.planner.diagnose.evidence.features import (
    ENGINE_FEATURES,
    GPU_FEATURES,
    WAIT_FEATURES,
)
from disagg_cluster.planner.diagnose.evidence.prompt_lengths import (
    PromptLengths,
    read_prompt_lengths,
    with_unfinished,
)
from disagg_cluster.planner.diagnose.evidence.readings import (
    Place,
    Readings,
    node_of,
    read_features,
)
from disagg_cluster.planner.diagnose.evidence.series_window import (
    Floats,
    ScrapedSeries,
    SeriesWindow,
)
from disagg_cluster.planner.diagnose.evidence.time_grid import (
    SampleBatch,
    TimeGrid,
    grid_of,
    late_seconds,
)
from disagg_cluster.planner.diagnose.evidence.users import (
    FIRST_TOKENS,
    ModelPlace,
    UserReadings,
    read_users,
)
from disagg_exporter.model import Role

_SERVING = {Role.PREFILL, Role.DECODE, Role.MIXED}


@dataclass(frozen=True, slots=True)
class FleetEngine:
    """An engine: its model and role, and the rows of its GPUs in `Fleet.gpus`.

    `last_seconds` is the Unix time of its last sample.
    """

    place: Place
    role: Role
    model_name: str
    engine_namespace: str
    kind: str
    version: str
    gpu_name: str
    gpus: tuple[int, ...]
    last_seconds: float

    @property
    def model(self) -> tuple[str, str, str]:
        """Cluster, namespace and model: the unit of diagnosis."""
        return self.place[0], self.engine_namespace, self.model_name

    @property
    def likeness(self) -> tuple[Role, str, str, int]:
        """What peers share: engines of a model with equal values should have equal step times."""
        return self.role, self.kind, self.gpu_name, len(self.gpus)


@dataclass(frozen=True, slots=True, eq=False)
class Fleet:
    """Engines and their observations; `engines[row]` is that row of each matrix.

    `waits` are those of `readings` in bins that end at the same times on all nodes, as do `users`.
    `rejected` counts impossible values that were left out, by reason.
    """

    grid: TimeGrid
    engines: tuple[FleetEngine, ...]
    readings: Readings
    waits: Readings
    gpus: Readings
    prompts: PromptLengths
    users: Mapping[ModelPlace, UserReadings]
    rejected: Mapping[str, int]


def read_fleet(window: SeriesWindow) -> Fleet | None:
    """Read all engines that serve a model; None where nothing was scraped twice."""
    grid = grid_of(window, "disagg_engine_info")
    if grid is None:
        return None
    batch = SampleBatch(grid)
    gpu_places, names = _gpus(window)
    row_of = {place: row for row, place in enumerate(gpu_places)}
    engines = _engines(window, row_of, names)
    places = [engine.place for engine in engines]
    readings = read_features(window, ENGINE_FEATURES, places, "engine", batch)
    gpus = read_features(window, GPU_FEATURES, gpu_places, "gpu", batch)
    _reject(readings.by_name["kv_usage"], 1.01, "shares above 1", batch)
    _reject(gpus.by_name["foreign_sm"], 1.01, "shares above 1", batch)
    # Counts of a frontend are compared with those of engines, so their bins must coincide.
    late = late_seconds(window, grid, "disagg_engine_info", FIRST_TOKENS)
    waits = read_features(window, WAIT_FEATURES, places, "engine", SampleBatch(grid, late))
    users = read_users(window, SampleBatch(grid, late, batch.rejected))
    is_prefill = np.array([engine.role is Role.PREFILL for engine in engines])
    lengths = read_prompt_lengths(window, readings.places, batch)
    prompts = with_unfinished(lengths, readings, is_prefill)
    return Fleet(grid, tuple(engines), readings, waits, gpus, prompts, users, dict(batch.rejected))


def _reject(values: Floats, most: float, why: str, batch: SampleBatch) -> None:
    with np.errstate(invalid="ignore"):
        above = values > most
    if above.any():
        batch.rejected[why] += int(above.sum())
        values[above] = np.nan


def _gpus(window: SeriesWindow) -> tuple[list[Place], dict[Place, str]]:
    names = {
        (*node_of(series.labels), series.labels.get("gpu", "")): series.labels.get("gpu_name", "")
        for series in window.of("disagg_gpu_info")
    }
    return sorted(names), names


def _engines(
    window: SeriesWindow,
    row_of: Mapping[Place, int],
    gpu_names: Mapping[Place, str],
) -> list[FleetEngine]:
    """Engines by their latest series: one that changed within the window is what it is now."""
    latest: dict[Place, tuple[float, ScrapedSeries]] = {}
    for series in window.of("disagg_engine_info"):
        place = (*node_of(series.labels), series.labels.get("engine", ""))
        end = float(series.times_seconds[-1]) if len(series.times_seconds) else -np.inf
        if place not in latest or end >= latest[place][0]:
            latest[place] = (end, series)
    on: dict[Place, dict[str, tuple[float, str]]] = {}
    for series in window.of("disagg_gpu_assignment_info"):
        labels = series.labels
        place = (*node_of(labels), labels.get("engine", ""))
        end = float(series.times_seconds[-1]) if len(series.times_seconds) else -np.inf
        held, gpu = on.setdefault(place, {}), labels.get("gpu", "")
        # There is a series for each role and source that the engine had.
        held[gpu] = max(held.get(gpu, (-np.inf, "")), (end, labels.get("engine_namespace", "")))
    found = []
    for place, (end, series) in sorted(latest.items()):
        labels = series.labels
        role = labels.get("role", "")
        if role not in _SERVING or not labels.get("model_name") or end < window.begin_seconds:
            continue
        namespaces = _held_last(on.get(place, {}))
        gpus = [each for gpu in sorted(namespaces) if (each := (*place[:2], gpu)) in row_of]
        found.append(
            FleetEngine(
                place=place,
                role=Role(role),
                model_name=labels["model_name"],
                engine_namespace=next(iter(namespaces.values()), ""),
                kind=labels.get("kind", ""),
                version=labels.get("version", ""),
                gpu_name="+".join(sorted({gpu_names[gpu] for gpu in gpus})),
                gpus=tuple(row_of[gpu] for gpu in gpus),
                last_seconds=end,
            )
        )
    return found


def _held_last(held: Mapping[str, tuple[float, str]]) -> dict[str, str]:
    """The GPUs that an engine held last, without released ones, and its namespace on each."""
    last = max((end for end, _ in held.values()), default=0.0)
    return {gpu: namespace for gpu, (end, namespace) in held.items() if end == last}
