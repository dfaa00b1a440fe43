"""A day on which all is well, for promtool: noisy load that swings, and nothing to tell anybody.

Five nodes with a prefill and a decode GPU each, a sample a minute. The load follows the hours from
a tenth to seven tenths of the GPUs' time. A worker is replaced with a drain, a daemon is updated
(its counters begin anew), a node is rebooted, one leaves for good, a collector fails once, and a
second model is scaled to zero for the night: all as it should be.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.alert_rules import group_names

MINUTES = 24 * 60
NODES = ("a", "b", "c", "d", "e")
LEAVES_AT = 20 * 60
DRAINED_FIRST = LEAVES_AT - 10
UPDATED_AT = 9 * 60
DRAINED_AT = 15 * 60
REBOOTED_AT, REBOOTED = 11 * 60, 11 * 60 + 8
LOADED = REBOOTED + 12
SLEEPS_AT, WAKES_AT = 2 * 60, 7 * 60
POOL = 'model_name="m",gpu_name="H"'

Value = Callable[[int], float]


def quiet_day(rule_files: list[Path], seed: int) -> dict[str, Any]:
    """Return the promtool test of the day; it fails if any alert has been firing at any time."""
    chance = random.Random(seed)
    series = [row for node in NODES for row in _node(node, chance)] + _sleeper()
    nothing = {
        "expr": 'count_over_time(ALERTS{alertstate="firing"}[24h])',
        "eval_time": "24h",
        "exp_samples": [],
    }
    # An empty answer proves nothing unless the day was there to be judged.
    judged = {
        "expr": "count(count_over_time(cluster_role:disagg_occupancy:rate5m[23h]) > 300)",
        "eval_time": "24h",
        "exp_samples": [{"labels": "{}", "value": 2}],
    }
    test = {"interval": "1m", "input_series": series, "promql_expr_test": [nothing, judged]}
    return {
        "rule_files": [str(path) for path in rule_files],
        "evaluation_interval": "4m",
        "group_eval_order": group_names(rule_files),
        "tests": [test],
    }


def load_at(minute: int) -> float:
    """Return the usual busy share of a GPU at that time of the day."""
    return 0.4 - 0.3 * math.cos(2 * math.pi * minute / MINUTES)


def _node(node: str, chance: random.Random) -> list[dict[str, str]]:
    ends = LEAVES_AT if node == "e" else MINUTES
    rows: list[dict[str, str]] = []

    def put(name: str, labels: str, values: list[float]) -> None:
        place = f'cluster="east",node="{node}"' + (f",{labels}" if labels else "")
        words = [f"{value:.6g}" for value in values[:ends]]
        if node == "d" and name != "up":
            words[REBOOTED_AT:REBOOTED] = ["stale", *["_"] * (REBOOTED - REBOOTED_AT - 1)]
        text = " ".join(words)
        gone = " stale" if ends < MINUTES else ""
        rows.append({"series": f"{name}{{{place}}}", "values": text + gone})

    def gauge(name: str, labels: str, value: Value) -> None:
        put(name, labels, [value(minute) for minute in range(MINUTES + 1)])

    def counter(name: str, labels: str, increments: list[float]) -> None:
        total, values = 0.0, []
        for minute, more in enumerate(increments):
            anew = (node, minute) in (("b", UPDATED_AT), ("d", REBOOTED))
            total = 0.0 if anew else total + more
            values.append(total)
        put(name, labels, values)

    rebooted = range(REBOOTED_AT, REBOOTED) if node == "d" else range(0)
    gauge("up", 'job="disagg-node"', lambda minute: minute not in rebooted)
    gauge("disagg_build_info", 'version="0.1.0"', lambda minute: 1)
    gauge("disagg_node_busy_window_seconds", "", lambda minute: 1)
    missed = chance.randrange(60, LEAVES_AT)
    gauge("disagg_collector_success", 'collector="nvml"', lambda minute: minute != missed)
    gauge("disagg_collector_success", 'collector="journal"', lambda minute: 1)
    counter("disagg_router_requests_total", "", [300.0] * (MINUTES + 1))
    for role in ("prefill", "decode"):
        _worker(node, role, chance, gauge, counter)
    return rows


def _sleeper() -> list[dict[str, str]]:
    """A node whose model is scaled to zero for the night: prefill goes first, and comes last."""
    place = 'cluster="east",node="z"'
    whole = {
        'up{job="disagg-node",%s}': 1,
        'disagg_build_info{version="0.1.0",%s}': 1,
        "disagg_node_busy_window_seconds{%s}": 1,
    }
    rows = [(name % place, f"{value}x{MINUTES}") for name, value in whole.items()]
    for role, later in (("prefill", 0), ("decode", 2)):
        off, on = SLEEPS_AT + later, WAKES_AT - later
        asleep = ["stale", *["_"] * (on - off - 1)]
        there = " ".join(["1"] * off + asleep + ["1"] * (MINUTES - on + 1))
        none = " ".join(["0"] * off + ["1"] * (on - off) + ["0"] * (MINUTES - on + 1))
        engine = f'{place},engine="{role}-z"'
        rows += [
            (f'disagg_engine_info{{{engine},role="{role}",model_name="night"}}', there),
            (f"disagg_engine_up{{{engine}}}", there),
            (f'disagg_node_role_gpus{{{place},role="{role}",gpu_name="H"}}', there),
            (f'disagg_node_role_gpus{{{place},role="none",gpu_name="H",of="{role}"}}', none),
        ]
    return [{"series": series, "values": values} for series, values in rows]


def _worker(
    node: str,
    role: str,
    chance: random.Random,
    gauge: Callable[[str, str, Value], None],
    counter: Callable[[str, str, list[float]], None],
) -> None:
    gpu, worker = f'gpu="{node}-{role}"', f'worker="{role}-0"'
    engine = f'engine="{role}-0"'
    other = "decode" if role == "prefill" else "prefill"

    def replaced(minute: int) -> bool:
        """Say whether the worker is being started: node c's after a drain, d's after its reboot."""
        if node == "d":
            return REBOOTED <= minute < LOADED
        return (node, role) == ("c", "decode") and DRAINED_AT <= minute < DRAINED_AT + 12

    def silent(minute: int) -> bool:
        return replaced(minute) or chance.random() < 0.001

    shares = [
        0.0 if replaced(minute) else min(max(chance.gauss(load_at(minute), 0.1), 0.0), 1.0)
        for minute in range(MINUTES + 1)
    ]
    leaks = [chance.uniform(0.0, 0.08) for _ in shares]
    busy = [60 * share * (1 - leak) for share, leak in zip(shares, leaks, strict=True)]
    leaked = [60 * share * leak for share, leak in zip(shares, leaks, strict=True)]
    idle = [60 * (1 - share) - 0.2 for share in shares]
    name, labels = "disagg_node_phase_seconds_total", f'role="{role}",{POOL},phase='
    counter(name, f'{labels}"{role}"', busy)
    counter(name, f'{labels}"{other}"', leaked)
    counter(name, f'{labels}"idle"', idle)
    name = "disagg_engine_gpu_seconds_total"
    counter(name, f'{engine},role="{role}",phase="{role}"', busy)
    counter(name, f'{engine},role="{role}",phase="{other}"', leaked)
    small = [chance.uniform(0.0, 3.0) for _ in shares]
    counter("disagg_gpu_unattributed_seconds_total", f'{gpu},reason="stranger"', small)
    counter("disagg_gpu_unobserved_seconds_total", f'{gpu},reason="no_reading"', small[::-1])
    counter("disagg_gpu_throttle_seconds_total", f'{gpu},reason="power_cap"', busy)
    counter("disagg_gpu_throttle_seconds_total", f'{gpu},reason="thermal"', small)
    gauge("disagg_gpu_ecc_errors_total", f'{gpu},kind="uncorrected"', lambda minute: 2)
    gauge("disagg_gpu_ecc_errors_total", f'{gpu},kind="corrected"', lambda minute: minute // 60)
    counter("disagg_span_cut_seconds_total", engine, [more / 10 for more in small])
    counter("disagg_lost_records_total", engine, [float(more > 2.9) for more in small])
    counter("disagg_engine_steps_total", f'{engine},kind="generation"', [900.0] * len(shares))
    tokens = [1.0 + 6000 * share for share in shares]
    counter("disagg_engine_phase_tokens_total", f'{engine},role="{role}",phase="{role}"', tokens)
    errors = [float(more > 2.8) for more in small]
    counter(f"disagg_router_{role}_errors_total", worker, errors)
    gauge("disagg_router_worker_health", worker, lambda minute: not (silent(minute) and minute % 3))
    gauge("disagg_engine_requests", f'{engine},state="running"', lambda m: round(9 * shares[m]))
    gauge("disagg_engine_up", engine, lambda minute: not replaced(minute))
    info = f'{engine},role="{role}",model_name="m",kind="vllm"'
    gauge("disagg_engine_info", info, lambda minute: 1)
    gauge("disagg_gpu_info", f'{gpu},index="0",gpu_name="H"', lambda minute: 1)
    gauge("disagg_gpu_assignment_info", f'{gpu},{engine},role="{role}"', lambda minute: 1)
    lag = chance.uniform(6, 30)
    name = "disagg_gpu_watermark_timestamp_seconds"
    gauge(name, gpu, lambda minute: 60 * minute - lag - 10 * chance.random())
    for state in ("ready", "starting", "draining", "failed", "backoff", "stopped"):
        in_it = {"ready": False, "starting": True}.get(state, False)
        gauge(
            "disagg_worker_state",
            f'{worker},state="{state}"',
            lambda minute, in_it=in_it, state=state: (
                in_it if replaced(minute) else state == "ready"
            ),
        )
    restarts = [float(replaced(minute) and minute == DRAINED_AT) for minute in range(MINUTES + 1)]
    counter("disagg_worker_restarts_total", worker, restarts)
    _service(node, role, engine, shares, chance, gauge, counter)
    for kind in ("steps", "engine"):
        labels = f'collector="{kind}:{role}-0"'
        gauge("disagg_collector_success", labels, lambda minute: not silent(minute))


def _service(
    node: str,
    role: str,
    engine: str,
    shares: list[float],
    chance: random.Random,
    gauge: Callable[[str, str, Value], None],
    counter: Callable[[str, str, list[float]], None],
) -> None:
    """Write how full an engine is and what its users get: fuller by day, now and then slow."""
    pool = f'role="{role}",{POOL}'
    full = [1.2 * share + chance.uniform(0.0, 0.05) for share in shares]
    gauge("disagg_node_capacity_used_gpus", pool, lambda minute: full[minute])
    gauge("disagg_node_capacity_known_gpus", pool, lambda minute: 1)
    # A node that leaves gives up its engines first.
    left = DRAINED_FIRST if node == "e" else MINUTES + 1
    gauge("disagg_node_role_gpus", f'role="{role}",gpu_name="H"', lambda minute: minute < left)
    gauge("disagg_node_role_gpus", f'role="none",gpu_name="H",pool="{role}"', lambda m: m >= left)
    who = f'{engine},role="{role}"'
    requests = [60.0 + 60 * share for share in shares]
    for name, bound in (("time_to_first_token", "0.5"), ("inter_token_latency", "0.05")):
        family = f"disagg_engine_{name}_seconds"
        fast = [number * chance.uniform(0.9, 1.0) for number in requests]
        counter(f"{family}_bucket", f'{who},le="{bound}"', fast)
        counter(f"{family}_count", who, requests)
    counter("disagg_engine_finished_requests_total", who, requests)
    counter("disagg_engine_preemptions_total", who, [0.02 * number for number in requests])
    counter("disagg_engine_kv_transfers_total", who, requests)
    counter("disagg_engine_kv_transfer_seconds_total", who, [0.2 * n for n in requests])
    failed = [float(chance.random() < 0.05) for _ in requests]
    counter("disagg_engine_kv_transfer_failures_total", f'{who},reason="transfer"', failed)
    waited = [60 * (1 - share) * chance.uniform(0.0, 0.3) for share in shares]
    counter("disagg_node_idle_seconds_total", f'{pool},reason="kv_wait"', waited)
    gauge("disagg_attribution_residual_ratio", engine, lambda minute: chance.uniform(0.02, 0.2))
    gauge("disagg_attribution_info", f'{engine},method="steps",split="model"', lambda minute: 1)
    gauge("disagg_engine_version_known", engine, lambda minute: 1)
