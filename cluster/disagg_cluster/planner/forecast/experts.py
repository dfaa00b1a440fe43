"""Simple forecasts that a stack combines: levels, damped trends, seasons.

At any past origin an expert forecasts each horizon from what was known then, so all experts can be
compared with the outcomes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from disagg_cluster.planner.forecast.running_means import Indices, RunningMeans
from disagg_cluster.planner.history.load_series import Floats

DAY_SECONDS = 86_400
WEEK_SECONDS = 7 * DAY_SECONDS
_TREND_WINDOWS = (4, 16, 64)
# One full period must have passed, then enough of the next one to score its forecasts.
_LEAST_PERIODS = 1.5
_MOST_PERIODS = 7
_MOST_FACTOR = 5.0


@dataclass(frozen=True, slots=True)
class Season:
    """A period after which load may repeat.

    `level_steps` is the averaging window for the present level and for the level a period ago.
    """

    name: str
    period_steps: int
    level_steps: int


@dataclass(frozen=True, slots=True)
class ExpertPoints:
    """Forecasts `points[horizon, origin, expert]`; each expert's name and season, if it has one."""

    points: Floats
    names: tuple[str, ...]
    seasons: tuple[str, ...]

    def without(self, season: str) -> ExpertPoints:
        """The same without the experts of a season."""
        kept = [i for i, each in enumerate(self.seasons) if each != season]
        return ExpertPoints(
            self.points[..., kept],
            tuple(self.names[i] for i in kept),
            tuple(self.seasons[i] for i in kept),
        )


def possible_seasons(length: int, step_seconds: float) -> tuple[Season, ...]:
    """Day and week, where a history of `length` steps is long enough to show them."""
    found = []
    for name, seconds, levels in (("day", DAY_SECONDS, 24), ("week", WEEK_SECONDS, 28)):
        period = round(seconds / step_seconds)
        if period >= 4 and length >= _LEAST_PERIODS * period:
            found.append(Season(name, period, max(1, period // levels)))
    return tuple(found)


def expert_points(
    values: Floats,
    origins: Indices,
    horizons: Indices,
    seasons: tuple[Season, ...] = (),
) -> ExpertPoints:
    """Forecasts of all experts from `origins` (last known steps) for `horizons` steps ahead."""
    means = RunningMeans(values)
    length = len(values)
    ahead = horizons[:, None].astype(np.float64)
    columns: list[tuple[str, str, Floats]] = []
    width = 1
    while width <= max(1, length // 4):
        level = np.broadcast_to(means.trailing(width, origins), (len(horizons), len(origins)))
        columns.append((f"mean {width}", "", level))
        width *= 2
    for width in _TREND_WINDOWS:
        if width * 6 <= length:
            columns.append((f"trend {width}", "", _trend(means, width, origins, ahead)))
    for season in seasons:
        columns += [
            (name, season.name, points)
            for name, points in _seasonal(values, means, season, origins, horizons)
        ]
    names, kinds, points = zip(*columns, strict=True)
    return ExpertPoints(np.stack(points, axis=-1), names, kinds)


def _trend(means: RunningMeans, width: int, origins: Indices, ahead: Floats) -> Floats:
    """Damped trend from two neighbouring windows: Gardner and McKenzie (1985)."""
    level = means.trailing(width, origins)
    slope = (level - means.trailing(width, np.maximum(origins - width, 0))) / width
    damping = 0.5 ** (1 / (2 * width))
    to_now = (width - 1) / 2
    points: Floats = level + slope * (to_now + damping * (1 - damping**ahead) / (1 - damping))
    return points


def _seasonal(
    values: Floats, means: RunningMeans, season: Season, origins: Indices, horizons: Indices
) -> list[tuple[str, Floats]]:
    """The same phase in past periods: as is, shifted to the present level, scaled to it."""
    period = season.period_steps
    smoothing = max(1, period // 48) | 1
    smooth = means.centred(smoothing)
    level = means.trailing(season.level_steps)
    now = np.broadcast_to(level[origins], (len(horizons), len(origins)))
    # The latest period in which the same phase and its smoothing window lie before the origin.
    latest = -(-(horizons + smoothing // 2) // period)
    sums, exact, levels, counts = (np.zeros(now.shape) for _ in range(4))
    last_phase, last_level = now.copy(), now.copy()
    for back in range(min(_MOST_PERIODS, len(values) // period)):
        steps = ((latest + back) * period)[:, None]
        same = origins + horizons[:, None] - steps
        then = origins - steps
        phase = smooth[np.maximum(same, 0)]
        there = (then >= 0) & np.isfinite(phase)
        phase = np.where(there, phase, 0.0)
        unsmoothed = values[np.maximum(same, 0)]
        exact += np.where(there, np.where(np.isfinite(unsmoothed), unsmoothed, phase), 0.0)
        level_then = np.where(there, level[np.maximum(then, 0)], 0.0)
        sums += phase
        levels += level_then
        counts += there
        if back == 0:
            last_phase = np.where(there, phase, now)
            last_level = np.where(there, level_then, now)
    divisor = np.maximum(counts, 1)
    profile = np.where(counts > 0, sums / divisor, now)
    # Unsmoothed, for loads with edges as sharp as a minute.
    sharp = np.where(counts > 0, exact / divisor, now)
    profile_level = np.where(counts > 0, levels / divisor, now)
    # A profile level near zero would scale the present load without bound.
    floor = 0.05 * float(np.nanmean(values))
    factor = profile / np.maximum(profile_level, max(floor, np.finfo(float).tiny))
    return [
        (f"{season.name}'s profile", profile),
        (f"{season.name}'s profile, sharp", sharp),
        (f"{season.name}'s profile, shifted", now + profile - profile_level),
        (f"{season.name}'s profile, scaled", now * np.clip(factor, 0.0, _MOST_FACTOR)),
        (f"last {season.name}", last_phase),
        (f"last {season.name}, shifted", now + last_phase - last_level),
    ]
