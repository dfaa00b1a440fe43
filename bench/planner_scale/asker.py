"""History and forecasts of all models, in a process of its own whose time and memory count.

`python -m bench.planner_scale.asker URL END_SECONDS [CLUSTER]` prints one JSON object.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from contextlib import closing

import numpy as np
from bench.planner_scale.recorded import DAY_SECONDS, DAYS, MINUTES

from disagg_cluster.host.linear_algebra import one_thread
from disagg_cluster.planner.forecast.forecaster import forecast
from disagg_cluster.planner.forecast.load_forecast import LoadForecast
from disagg_cluster.planner.history.history_request import HistoryRequest
from disagg_cluster.planner.history.prometheus_history import PrometheusHistory
from disagg_cluster.prometheus.prometheus_api import Prometheus

DAY_STEPS = 1440


def main() -> None:
    """Read, forecast a day of requests, prompts and outputs of each model, say what it took."""
    url, end_seconds, *cluster = sys.argv[1:]
    end = float(end_seconds)
    request = HistoryRequest(end - DAYS * DAY_SECONDS, end, cluster=cluster[0] if cluster else None)
    one_thread()  # as commands and service do
    began = time.monotonic()
    with closing(Prometheus(url)) as prometheus:
        found = PrometheusHistory(prometheus).read(request)
    read_seconds = time.monotonic() - began
    missing = sum(MINUTES - each.output_tokens.known for each in found)
    forecasts = 0
    for each in found:
        assert each.requests is not None
        for series in (each.requests, each.prompt_tokens, each.output_tokens):
            made = forecast(series, DAY_STEPS)
            assert isinstance(made, LoadForecast)
            assert np.isfinite(made.values).all()
            forecasts += 1
    whole_seconds = time.monotonic() - began
    used = resource.getrusage(resource.RUSAGE_SELF)
    figures = {
        "models": len(found),
        "forecasts": forecasts,
        "minutes missing": missing,
        "read s": read_seconds,
        "whole s": whole_seconds,
        "CPU s": used.ru_utime + used.ru_stime,
        "MiB": used.ru_maxrss / 1024,
    }
    sys.stdout.write(json.dumps(figures) + "\n")


if __name__ == "__main__":
    main()
