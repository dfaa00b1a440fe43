"""Row of the Engines dashboard: requests at each engine, by state."""

from __future__ import annotations

from typing import Any

from grafana.builders.engines.queries import OTHERS, R, rate, top_of_gauge
from grafana.builders.panels.board import Row
from grafana.builders.panels.charts import lines
from grafana.builders.panels.frame import QUARTER
from grafana.builders.panels.palette import GREEN, RED, ROLE_TONES
from grafana.builders.panels.queries import Ask


def queues() -> Row:
    """Requests running, waiting and deferred, and those that ended or were preempted."""

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
            none="no engine here reports its requests",
        )

    return "Requests: the highest engines of each role, and the median of the others", [
        requests(
            "running",
            "Requests in the batch of each engine. Good: engines of one role alike. On decode, "
            "more makes each token cheaper, until step times suffer.",
        ),
        requests(
            "waiting",
            "Requests that wait for room in an engine. Good: 0, or short peaks on prefill. Bad: a "
            "line that stays up; the pool is too small, or routing is uneven.",
        ),
        requests(
            "deferred",
            "Requests that wait for something other than room, such as their KV. Good: few, and "
            "soon gone. Bad: growing on decode engines; a transfer is slow or stuck.",
        ),
        lines(
            "Requests finished and preempted a second",
            "Requests that ended for any reason, counted once on prefill and once on decode; and "
            "requests that lost their place for lack of KV cache and are computed again. Good: no "
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
