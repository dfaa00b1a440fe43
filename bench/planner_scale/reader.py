"""History, forecasts and plans of all models, in a separate process that is measured.

`python -m bench.planner_scale.reader URL END_SECONDS [CLUSTER]` prints one JSON object.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections import defaultdict
from contextlib import closing

import numpy as np
from bench.planner_scale.engines import GPU_NAME
from bench.planner_scale.recorded import DAY_SECONDS, DAYS, ENGINES, MINUTES

from disagg_cluster.host.linear_algebra import one_thread
from disagg_cluster.planner.advice.cluster_engines import engines_of
from disagg_cluster.planner.advice.cluster_plan import cluster_plan
from disagg_cluster.planner.advice.demands import DemandBuilder
from disagg_cluster.planner.capacity.learned.prometheus_costs import PrometheusCosts
from disagg_cluster.planner.forecast.forecaster import SharedForecasts
from disagg_cluster.planner.forecast.load_forecast import LoadForecast
from disagg_cluster.planner.history.history_request import HistoryRequest
from disagg_cluster.planner.history.load_history import LoadHistory
from disagg_cluster.planner.history.prometheus_history import PrometheusHistory
from disagg_cluster.planner.plan.gpu_plan import ModelPlan
from disagg_cluster.planner.settings.planner_file import PlannerConfig
from disagg_cluster.planner.settings.sections import OfferSection, TargetsSection
from disagg_cluster.prometheus.prometheus_api import Prometheus

DAY_STEPS = 1440
# The bars decide what is too long; on a busy machine the usual limit of 600 s would end the run.
_READ_SECONDS = 3600.0
CONFIG = PlannerConfig(
    targets=TargetsSection(ttft_seconds=2.0, itl_seconds=0.05),
    gpus=(OfferSection(gpu_name=GPU_NAME, most_gpus=2 * ENGINES, price_per_hour=3.0),),
)


def main() -> None:
    """Read, forecast a day of each model's requests, prompts and outputs, plan; print the cost."""
    url, end_seconds, *cluster = sys.argv[1:]
    end = float(end_seconds)
    request = HistoryRequest(end - DAYS * DAY_SECONDS, end, cluster=cluster[0] if cluster else None)
    one_thread()  # as commands and service do
    began = time.monotonic()
    with closing(Prometheus(url)) as prometheus:
        found = PrometheusHistory(prometheus, read_seconds=_READ_SECONDS).read(request)
        of_cluster: dict[str, list[LoadHistory]] = defaultdict(list)
        for each in found:
            of_cluster[each.key.cluster].append(each)
        engines = {
            name: engines_of(PrometheusCosts(prometheus, name).families(end)) for name in of_cluster
        }
    read = time.monotonic()
    _progress(f"read in {read - began:.0f} s")
    shared = SharedForecasts()
    forecasts = sum(_forecast(each, shared) for each in found)
    forecast = time.monotonic()
    _progress(f"forecast in {forecast - read:.0f} s")
    planned = 0
    for name, histories in of_cluster.items():
        assert sum(engines[name].running.values()) == ENGINES
        builder = DemandBuilder(CONFIG, shared.forecast)
        made = cluster_plan(builder, CONFIG, histories, engines[name], end)
        planned += sum(isinstance(each, ModelPlan) for each in made.models)
        _progress(f"{name} planned")
    done = time.monotonic()
    used = resource.getrusage(resource.RUSAGE_SELF)
    figures = {
        "planned": planned,
        "forecasts": forecasts,
        "left out": len(found) - planned,
        "minutes missing": sum(MINUTES - each.output_tokens.known for each in found),
        "read s": read - began,
        "forecast s": forecast - read,
        "plan s": done - forecast,
        "wall s": done - began,
        "CPU s": used.ru_utime + used.ru_stime,
        "MiB": used.ru_maxrss / 1024,
    }
    sys.stdout.write(json.dumps(figures) + "\n")


def _progress(what: str) -> None:
    used = resource.getrusage(resource.RUSAGE_SELF)
    sys.stderr.write(
        f"{what}; {used.ru_utime + used.ru_stime:.1f} CPU-s, {used.ru_maxrss >> 10} MiB\n"
    )


def _forecast(history: LoadHistory, shared: SharedForecasts) -> int:
    """Forecast a day of all three drivers; return how many forecasts that were."""
    assert history.requests is not None
    drivers = (history.requests, history.prompt_tokens, history.output_tokens)
    for series in drivers:
        made = shared.forecast(series, DAY_STEPS)
        assert isinstance(made, LoadForecast)
        assert np.isfinite(made.values).all()
    return len(drivers)


if __name__ == "__main__":
    main()
