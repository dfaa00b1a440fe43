"""The quality of our load forecasts beside other forecasters': `make bench-forecast`.

Every recorded trace in bench/forecast/traces and every made-up kind is forecast from 48 origins at
horizons from five minutes to a day, by us and by each peer; the baseline is the last value with the
quantiles of its own past errors. The bars apply to the recorded traces; the made-up kinds are
printed beside them and decide nothing. The peers' libraries are installed in a separate
environment, `.venv-bench-forecast`, made on the first run. A run takes about an hour of CPU, nearly
all of it the peers'; `--peers "last value,moving average"` runs fewer peers and checks fewer bars.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
import venv
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from bench.forecast.cases import TRACES, Case, cases
from bench.forecast.kinds import Floats
from bench.forecast.scores import (
    QUANTILES,
    Score,
    median_to_best,
    ratio,
    scores,
    upper_bound,
)
from bench.report import finish

from disagg_cluster.planner.forecast.forecaster import forecast
from disagg_cluster.planner.forecast.load_forecast import LoadForecast
from disagg_cluster.planner.history.load_series import LoadSeries

ENVIRONMENT = Path(".venv-bench-forecast")
PACKAGES = ("statsforecast==2.1.1", "pmdarima==2.1.1")
REPORT = Path("bench/out/forecast.json")
LAST_VALUE, DYNAMO = "last value", "Dynamo default"
BASELINES = (
    *("moving average", "same time yesterday", "AutoETS", "AutoTheta", "AutoARIMA", "MSTL"),
    "Dynamo constant",
)
PEERS = (LAST_VALUE, *BASELINES, DYNAMO)
SIX_HOURS_MINUTES = 360
WEEK_SECONDS = 7 * 86_400
SPEED_STEPS = 14 * 1440
BARS = {
    "pinball / last value, to 6 h": 0.93,
    "cost / last value, to 6 h": 0.93,
    "the former's upper bound": 1.0,
    "the latter's upper bound": 1.0,
    "pinball / best baseline, to 6 h": 1.0,
    "cost / best baseline, to 6 h": 1.0,
    "cost / Dynamo's default, to 6 h": 0.4,
    "pinball / last value, 24 h": 1.0,
    "cost / last value, 24 h": 1.0,
    "pinball / each best, median, 24 h": 1.05,
    "cost / each best, median, 24 h": 1.05,
    "90 % bands off by, points, to 6 h": 5.0,
    "90 % bands below, points, 24 h": 10.0,
    "under-provisioned, points more": 1.0,
    "CPU s, two weeks of minutes": 0.5,
}
Scores = Mapping[str, Mapping[int, Score]]


def main() -> int:
    """Forecast, score, print, write the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--origins", type=int, default=48)
    parser.add_argument("--peers", default=",".join(PEERS))
    parser.add_argument("--traces", type=Path, default=TRACES, help="other recorded traces")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    peers = [each for each in PEERS if each in options.peers.split(",") or each == LAST_VALUE]
    held = list(cases(options.origins, options.traces))
    found: dict[str, Scores] = {"ours": _scored(held, [_ours(case) for case in held])}
    found |= {name: _scored(held, paths) for name, paths in _theirs(held, peers)}
    if not options.json:
        sys.stdout.write(_by_kind(held, found))
    figures = _figures([case for case in held if case.recorded], found)
    return finish(REPORT, figures, BARS, as_json=options.json, origins=options.origins, peers=peers)


def _ours(case: Case) -> Floats:
    paths = []
    for origin in case.origins:
        series = LoadSeries(0.0, case.step_seconds, case.values[:origin])
        made = forecast(series, case.longest, QUANTILES)
        if not isinstance(made, LoadForecast):
            raise SystemExit(f"{case.name} at {origin}: {made.why}")
        paths.append(made.values)
    return np.array(paths)


def _theirs(held: list[Case], peers: list[str]) -> Iterable[tuple[str, list[Floats]]]:
    """Yield each peer's paths; two run at a time."""
    python = ENVIRONMENT / "bin" / "python"
    if not (ENVIRONMENT / ".ready").exists():
        venv.create(ENVIRONMENT, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *PACKAGES], check=True)
        (ENVIRONMENT / ".ready").touch()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        arrays = {
            f"{i}/{key}": value
            for i, case in enumerate(held)
            for key, value in {
                "values": case.values,
                "step": case.step_seconds,
                "origins": case.origins,
                "longest": case.longest,
            }.items()
        }
        np.savez(folder / "cases.npz", **{key: np.asarray(each) for key, each in arrays.items()})

        def run(peer: str) -> list[Floats]:
            target = folder / f"{peer}.npz"
            script = Path(__file__).parent / "peers.py"
            subprocess.run([python, script, folder / "cases.npz", target, peer], check=True)
            made = np.load(target)
            return [made[f"{i}/paths"] for i in range(len(held))]

        with ThreadPoolExecutor(2) as pool:
            yield from zip(peers, pool.map(run, peers), strict=True)


def _scored(held: list[Case], paths: Iterable[Floats]) -> Scores:
    return {case.name: scores(case, each) for case, each in zip(held, paths, strict=True)}


def _losses(
    held: Iterable[Case], of: Scores, loss: str, included: Callable[[Case, int], bool]
) -> dict[str, list[Floats]]:
    """Return the losses by series, one horizon after the other."""
    found = defaultdict(list)
    for case in held:
        for minutes, _ in case.horizons:
            if included(case, minutes):
                found[case.name].append(getattr(of[case.name][minutes], loss))
    return found


def _flat(losses: Mapping[str, list[Floats]]) -> list[Floats]:
    return [each for several in losses.values() for each in several]


def _near(_case: Case, minutes: int) -> bool:
    return minutes <= SIX_HOURS_MINUTES


def _far(case: Case, minutes: int) -> bool:
    return (
        minutes > SIX_HOURS_MINUTES and len(case.values) * case.step_seconds >= WEEK_SECONDS * 0.95
    )


def _figures(held: list[Case], found: Mapping[str, Scores]) -> dict[str, float | None]:
    def losses(who: str, loss: str, which: Callable[[Case, int], bool]) -> dict[str, list[Floats]]:
        return _losses(held, found[who], loss, which)

    def flat(who: str, loss: str, which: Callable[[Case, int], bool]) -> list[Floats]:
        return _flat(losses(who, loss, which))

    baselines = [each for each in BASELINES if each in found]
    figures: dict[str, float | None] = dict.fromkeys(BARS)
    for loss in ("pinball", "cost"):
        near, far = flat("ours", loss, _near), flat("ours", loss, _far)
        figures[f"{loss} / last value, to 6 h"] = ratio(near, flat(LAST_VALUE, loss, _near))
        figures[f"the {'former' if loss == 'pinball' else 'latter'}'s upper bound"] = upper_bound(
            losses("ours", loss, _near), losses(LAST_VALUE, loss, _near)
        )
        if far:
            figures[f"{loss} / last value, 24 h"] = ratio(far, flat(LAST_VALUE, loss, _far))
        if baselines:
            figures[f"{loss} / best baseline, to 6 h"] = max(
                ratio(near, flat(each, loss, _near)) for each in baselines
            )
            if far:
                figures[f"{loss} / each best, median, 24 h"] = median_to_best(
                    far, [flat(each, loss, _far) for each in (LAST_VALUE, *baselines)]
                )
    if DYNAMO in found:
        figures["cost / Dynamo's default, to 6 h"] = ratio(
            flat("ours", "cost", _near), flat(DYNAMO, "cost", _near)
        )
    covered = _mean(flat("ours", "covered", _near))
    figures["90 % bands off by, points, to 6 h"] = abs(covered - 90)
    if flat("ours", "covered", _far):
        figures["90 % bands below, points, 24 h"] = 90 - _mean(flat("ours", "covered", _far))
    figures["under-provisioned, points more"] = _mean(flat("ours", "under", _near)) - _mean(
        flat(LAST_VALUE, "under", _near)
    )
    figures["CPU s, two weeks of minutes"] = _cpu_seconds()
    return figures


def _mean(of: list[Floats]) -> float:
    return float(np.mean([each.mean() for each in of]))


def _cpu_seconds() -> float:
    """Return the median of five forecasts of a day from two weeks of minutes, without imports."""
    rng = np.random.default_rng(0)
    day = np.sin(np.arange(SPEED_STEPS) * 2 * np.pi / 1440)
    series = LoadSeries(0.0, 60.0, (5 + day + rng.normal(0, 0.3, SPEED_STEPS)) ** 2)
    taken = []
    for _ in range(5):
        began = time.process_time()
        forecast(series, 1440, QUANTILES)
        taken.append(time.process_time() - began)
    return float(np.median(taken))


def _by_kind(held: list[Case], found: Mapping[str, Scores]) -> str:
    """Return a table by forecaster: pinball and cost over the last value's, and coverage."""
    lines = []
    for title, recorded in (("recorded traces", True), ("made-up kinds", False)):
        these = [case for case in held if case.recorded is recorded]
        for until, included in (("to 6 h", _near), ("24 h", _far)):
            base = {
                loss: _flat(_losses(these, found[LAST_VALUE], loss, included))
                for loss in ("pinball", "cost")
            }
            if not base["cost"]:
                continue
            lines.append(f"\n{title}, {until}, {len(base['cost'])} cases: / last value")
            lines.append(f"{'':22}{'pinball':>9}{'cost':>9}{'covered':>9}{'under':>9}")
            for name, of in found.items():
                flat = {
                    loss: _flat(_losses(these, of, loss, included))
                    for loss in ("pinball", "cost", "covered", "under")
                }
                row = [*(ratio(flat[loss], base[loss]) for loss in base)]
                row += [_mean(flat[loss]) for loss in ("covered", "under")]
                lines.append(f"{name:22}{row[0]:9.3f}{row[1]:9.3f}{row[2]:9.1f}{row[3]:9.1f}")
    return "\n".join(lines) + "\n\n"


if __name__ == "__main__":
    sys.exit(main())
