"""Row of the Engines dashboard: who has requests, and what they wait for."""

from __future__ import annotations

from typing import Any

from grafana.builders.engines.queries import OTHERS, R, rate, top_of_gauge
from grafana.builders.panels.board import Row
from grafana.builders.panels.charts import lines
from grafana.builders.panels.frame import QUARTER
from grafana.builders.panels.palette import GREEN, RED, ROLE_TONES
from grafana.builders.panels.queries import Ask


def queues() -> Row:
    """Who has requests, and what they wait for."""

    def requests(state: str, good: str) -> Any:
        return lines(
            f"Requests {state}",
            good,
            top_of_gauge("disagg_engine_requests", f'{R}, state="{state}"'),
            decimals=0,
            width=QUARTER,
            at_least=3,
            filled=0,
            tones=ROLE_TONES,
            dashed=OTHERS,
            none="no engine here tells its requests",
        )

    return "Requests: the highest engines of each role, and the median of the others", [
        requests(
            "running",
            "Requests in the batch of each engine. Good: engines of one role alike. On decode more "
            "is cheaper for each token, until the step time suffers.",
        ),
        requests(
            "waiting",
            "Requests that wait for room in an engine. Good: 0, or short peaks on prefill. Bad: a "
            "line that stays up; its pool is too small, or the router sends unevenly.",
        ),
        requests(
            "deferred",
            "Requests that wait for something else than room, such as their KV. Good: few and "
            "soon gone. Bad: growing on decode engines, which is a transfer that is slow or stuck.",
        ),
        lines(
            "Requests finished and preempted a second",
            "Requests that ended, however they did, each on prefill and on decode once; and "
            "requests that lost their place for want of KV cache and are computed again. Good: no "
            "preemption.",
            [
                Ask(f"sum ({rate('disagg_engine_finished_requests_total')})", "finished"),
                Ask(f"sum ({rate('disagg_engine_preemptions_total')})", "preempted"),
            ],
            decimals=1,
            width=QUARTER,
            colours={"finished": GREEN, "preempted": RED},
            none="no engine here counts its requests",
            runbooks=("DisaggPreemptions",),
        ),
    ]
