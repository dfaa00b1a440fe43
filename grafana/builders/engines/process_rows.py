"""Rows of the Engines dashboard: the processes behind the engines, and the router."""

from __future__ import annotations

from grafana.builders.engines.queries import N, rate, rate_now
from grafana.builders.panels.board import NODE_LINK, Row
from grafana.builders.panels.charts import lines, numbers
from grafana.builders.panels.palette import BLUE, ORANGE, PHASES, WORKER_STATES
from grafana.builders.panels.queries import Ask, once
from grafana.builders.panels.tables import Column, rows
from grafana.builders.panels.timelines import coded, states

_MOST = 12
"""Number of state bars: more are not legible."""


def workers() -> Row:
    """State and restarts of the processes that the daemon launched."""
    by = "cluster, node, worker"
    state = coded(f"disagg_worker_state{{{N}, %s}} == 1", "state", WORKER_STATES, by)
    ready = f'avg_over_time(disagg_worker_state{{{N}, state="ready"}}[$__range] @ end())'
    chosen = f"bottomk({_MOST}, max by ({by}) ({ready}))"
    none = "no worker here: nothing on these nodes was started by disagg-node"
    return "Workers of these nodes", [
        states(
            "State of each worker",
            "State of the processes that the daemon launched. Good: green. `backoff`: waiting to "
            "restart after a crash; `failed`: the daemon gave up, read the worker's log. The "
            f"{_MOST} that were ready for the shortest part of the time shown.",
            [Ask(f"{state} and on ({by}) {chosen}", "{{worker}} {{node}}")],
            WORKER_STATES,
            none=none,
            width=16,
            height=8,
            runbooks=(
                "DisaggWorkerCrashLoop",
                "DisaggWorkerFailed",
                "DisaggWorkerDown",
                "DisaggWorkerPaused",
            ),
        ),
        rows(
            "Restarts",
            "How often each worker was restarted since its daemon began, and the age of its "
            "process. Good: 0 restarts. A young process among old ones has crashed.",
            [
                Ask(f"max by (cluster, node, worker) (disagg_worker_restarts_total{{{N}}})"),
                Ask(
                    f"time() - max by (cluster, node, worker)"
                    f" (disagg_worker_start_timestamp_seconds{{{N}}})"
                ),
            ],
            [
                Column("worker", "Worker"),
                Column("cluster", "Cluster", width=80),
                Column("node", "Node", link=NODE_LINK),
                Column("A", "Restarts", decimals=0, width=90),
                Column("B", "Alive for", unit="dtdhms", width=110),
            ],
            sort="Restarts",
            none=none,
            width=8,
            height=8,
            runbooks=("DisaggWorkerFlapping",),
        ),
    ]


def router() -> Row:
    """Folded, because a node without a router has no data for these panels."""
    errors = " or ".join(
        "label_replace(sum by (cluster, worker)"
        f" ({rate(f'disagg_router_{phase}_errors_total', N)}),"
        f' "phase", "{phase}", "", "")'
        for phase in ("prefill", "decode")
    )
    none = "no router here"
    health = once("disagg_router_worker_health", N)
    return "Router", [
        numbers(
            "Requests a second",
            "Requests answered by the routers of these nodes, failed ones included.",
            [Ask(f"sum ({rate_now('disagg_router_requests_total', N)})")],
            decimals=1,
            none=none,
        ),
        numbers(
            "Waiting for prefill",
            "Requests whose decode engine is chosen and that wait for their prefill to end. Bad: "
            "it grows while no prefill engine has requests waiting; an answer was lost.",
            [Ask(f"sum ({once('disagg_router_pending_requests', N)})")],
            decimals=0,
            none=none,
        ),
        numbers(
            "Engines held unhealthy",
            "Engines that the router considers unhealthy and sends no requests. Good: 0.",
            [Ask(f"count ({health}) - sum ({health})")],
            decimals=0,
            steps=((None, "green"), (1, "red")),
            none=none,
            runbooks=("DisaggRouterWorkerUnhealthy",),
        ),
        lines(
            "Requests at the engines",
            "Requests that the router has waiting or running at engines, by phase.",
            [Ask(f"sum by (phase) ({once('disagg_router_active_requests', N)})", "{{phase}}")],
            decimals=0,
            width=6,
            height=6,
            colours=PHASES,
            none=none,
        ),
        lines(
            "Failed requests a second",
            "Requests that failed at an engine, as observed by the router. Good: none. The legend "
            "names the engine to check first.",
            [Ask(errors, "{{phase}}: {{worker}}")],
            decimals=2,
            width=6,
            height=6,
            colours={},
            tones={"^prefill": BLUE, "^decode": ORANGE},
            none=none,
            runbooks=("DisaggRouterErrors",),
        ),
    ]
