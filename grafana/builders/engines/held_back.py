"""Row of the Engines dashboard: what holds first tokens back, engine by engine."""

from __future__ import annotations

from grafana.builders.engines.queries import BY, BY_ROLE, EACH, OTHERS, N, R, rate, top
from grafana.builders.panels.board import NODE_LINK, Row
from grafana.builders.panels.charts import lines
from grafana.builders.panels.frame import QUARTER
from grafana.builders.panels.limits import limit
from grafana.builders.panels.palette import QUEUES, ROLE_TONES
from grafana.builders.panels.queries import Ask, once
from grafana.builders.panels.tables import HIDDEN_CLUSTER, Column, rows

_SLOWER = 1.25


def held_back() -> Row:
    """Where the first token's time goes, and which part of it is not the work itself."""
    compared = rate("disagg_engine_compared_step_seconds_total")
    expected = rate("disagg_engine_expected_step_seconds_total")
    gaps = rate("disagg_gpu_idle_seconds_total", f'{N}, reason="host_gap"')
    # Per engine: each engine that shares a GPU gets all of its gaps.
    served = f"max by (cluster, node, engine, role, gpu) (disagg_gpu_assignment_info{{{R}}})"
    waited = f"sum by (cluster, node, gpu) ({gaps})"

    def part(component: str) -> Ask:
        told = f'{R}, component="{component}"'
        seconds = rate("disagg_engine_ttft_component_seconds_total", told, "5m")
        requests = rate("disagg_engine_ttft_component_requests_total", told, "5m")
        return Ask(f"{BY} ({seconds}) / ({BY} ({requests}) > 0)")

    def waits(header: str, letter: str) -> Column:
        return Column(letter, header, unit="s", decimals=2, width=92)

    return "What holds first tokens back", [
        rows(
            "Parts of the first token by engine",
            "Mean seconds that requests spent in each stage at each engine, over five minutes. "
            "Good: engines of one role alike. Bad: an engine whose queue or prefill takes longer "
            "than its peers'. `disagg-node diagnose` says why.",
            [
                Ask(f"{EACH[:-1]}, role) (disagg_engine_info{{{R}}})"),
                part("queue"),
                part("prefill"),
                part("kv_transfer"),
                part("first_decode"),
            ],
            [
                Column("engine", "Engine", width=120),
                HIDDEN_CLUSTER,
                Column("node", "Node", link=NODE_LINK, width=110),
                Column("role", "Role", width=66),
                waits("Queue", "B"),
                waits("Prefill", "C"),
                waits("KV transfer", "D"),
                waits("1st decode", "E"),
            ],
            sort="Queue",
            width=10,
            none="no engine here reports the parts of a first token",
            runbooks=("DisaggBottleneck", "DisaggBottleneckUndecided"),
        ),
        lines(
            "Step time over expected",
            "Step time over the time the same work took before, by each engine's own cost model. "
            "Good: 1. Above the dashed line, the engine has become slower: its GPU, its host, or "
            "other programs beside it. Absent until the model is learned.",
            top(f"{BY_ROLE} ({compared}) / {BY_ROLE} ({expected})"),
            decimals=2,
            width=QUARTER - 1,
            height=9,
            at_least=1.5,
            filled=0,
            steps=limit(_SLOWER),
            tones=ROLE_TONES,
            dashed=OTHERS,
            none="no engine here reports steps, or their cost is not known yet",
            runbooks=("DisaggBottleneck",),
        ),
        lines(
            "Disaggregation queues",
            "Requests that wait between prefill and decode, by what they wait for: `bootstrap` "
            "for the decode engine's answer, `prealloc` for room there, `inflight` and `transfer` "
            "for KV on its way. Good: few, and soon gone.",
            [
                Ask(
                    f"sum by (queue) ({once('disagg_engine_kv_queue_requests', R)})",
                    "{{queue}}",
                )
            ],
            decimals=0,
            width=QUARTER - 1,
            height=9,
            at_least=3,
            filled=0,
            colours=QUEUES,
            none="no prefill or decode engine here reports such queues",
        ),
        lines(
            "Host gaps",
            "GPUs' worth of time spent waiting for the host while their engine had requests: "
            "scheduling, tokenizing, launching. Good: near 0. Bad: a tenth of an engine's GPUs or "
            "more; a faster GPU does not recover that time.",
            top(f"{BY_ROLE} ({served} * on (cluster, node, gpu) group_left () {waited})"),
            decimals=2,
            width=QUARTER - 2,
            height=9,
            at_least=0.5,
            filled=0,
            tones=ROLE_TONES,
            dashed=OTHERS,
            none="no engine here has a visible GPU",
        ),
    ]
