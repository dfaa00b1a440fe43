"""The series of one engine and its GPU, as on a node's page, derived from how busy it is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from bench.alerts.series import Mask, Target, Values

STATES = ("ready", "starting", "draining", "failed", "backoff", "stopped")


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine's identity, and the latency that its users get."""

    name: str
    role: str
    model: str
    namespace: str = ""
    gpu_name: str = "H"
    launched: bool = False
    source: str = "frontend"
    """Which component reports how long its users wait."""
    slow: float = 0.04
    """The share of waits beyond their target."""

    @property
    def pool(self) -> str:
        """Return the labels, other than the role, of its node's sums."""
        place = f',engine_namespace="{self.namespace}"' if self.namespace else ""
        return f'model_name="{self.model}"{place}'


def put_engine(
    target: Target,
    engine: Engine,
    busy: Values,
    chance: np.random.Generator,
    *,
    up: Mask | None = None,
    there: Mask | None = None,
    requests: Values | None = None,
    full: float = 1.25,
) -> None:
    """Add the series of an engine that is busy for the given share of each minute.

    It works where the page shows it (`there`) and it answers (`up`); shown but not up, it is
    loading its model. `requests` are per second, by minute; by default they follow `busy`. `full`
    is the capacity used at which it is always busy.
    """
    role, who = engine.role, f'engine="{engine.name}"'
    as_role = f'{who},role="{role}"'
    seen = np.ones(len(target.times), bool) if there is None else there
    answers = seen if up is None else seen & up
    works = _by_minute(answers, target.times, len(busy))
    busy = busy * works
    asked = 2 * busy if requests is None else requests * works

    info = f'{as_role},model_name="{engine.model}",kind="vllm"'
    target.gauge("disagg_engine_info", info, 1, seen)
    # An occasional probe is late.
    late = chance.random(len(target.times)) < 0.0005
    target.gauge("disagg_engine_up", who, (answers & ~late).astype(float), seen)
    _gpu(target, engine, busy, chance, seen)
    _sums(target, engine, busy, full, chance, seen)
    _waits(target, engine, asked, chance, seen)

    phase = "decode" if role == "mixed" else role
    leak = busy * chance.uniform(0.0, 0.08, len(busy))
    other = "decode" if phase == "prefill" else "prefill"
    name = "disagg_engine_gpu_seconds_total"
    target.counter(name, f'{as_role},phase="{phase}"', busy - leak, seen)
    target.counter(name, f'{as_role},phase="{other}"', leak, seen)
    target.counter("disagg_engine_steps_total", f'{as_role},kind="generation"', 15 * busy, seen)
    target.counter(
        "disagg_engine_phase_tokens_total", f'{as_role},phase="{phase}"', 3000 * busy, seen
    )
    target.gauge("disagg_engine_requests", f'{as_role},state="running"', np.round(9 * busy), seen)
    # Requests that wait for KV from another engine are not this engine's to move.
    target.gauge("disagg_engine_requests", f'{as_role},state="kv_wait"', 2.0, seen)
    target.counter("disagg_engine_finished_requests_total", as_role, asked, seen)
    target.counter("disagg_engine_preemptions_total", as_role, 0.02 * asked, seen)
    target.counter("disagg_engine_kv_transfers_total", as_role, asked, seen)
    target.counter("disagg_engine_kv_transfer_seconds_total", as_role, 0.2 * asked, seen)
    failed = 0.001 * asked
    target.counter(
        "disagg_engine_kv_transfer_failures_total", f'{as_role},reason="x"', failed, seen
    )
    target.counter("disagg_span_cut_seconds_total", who, 0.004, seen)
    residual = chance.uniform(0.02, 0.2, len(busy))
    target.gauge("disagg_attribution_residual_ratio", who, residual, seen)
    method = f'{who},method="steps",split="model"'
    target.gauge("disagg_attribution_info", method, 1, seen)
    for kind in ("steps", "engine") if engine.launched else ("engine",):
        label = f'collector="{kind}:{engine.name}"'
        target.gauge("disagg_collector_success", label, answers.astype(float), seen)
    if engine.launched:
        _worker(target, engine, answers, seen)


def _worker(target: Target, engine: Engine, ready: Mask, seen: Mask) -> None:
    worker = f'worker="{engine.name}"'
    for state in STATES:
        is_so = {"ready": ready, "starting": ~ready}.get(state, np.zeros(len(ready), bool))
        target.gauge("disagg_worker_state", f'{worker},state="{state}"', is_so.astype(float), seen)
    target.gauge(
        "disagg_worker_restarts_total", worker, np.cumsum(np.diff(ready, prepend=True)) // 2
    )
    if engine.role == "prefill":
        target.counter("disagg_router_requests_total", "", 5.0)
    target.gauge("disagg_router_worker_health", worker, ready.astype(float))
    target.counter(f"disagg_router_{engine.role}_errors_total", worker, 0.01)


def _gpu(
    target: Target, engine: Engine, busy: Values, chance: np.random.Generator, seen: Mask
) -> None:
    gpu = f'gpu="{engine.name}"'
    if engine.gpu_name == "H":
        info = f'{gpu},index="{engine.role}",gpu_name="H",device="nvidia-{engine.role}"'
        target.gauge("disagg_gpu_info", info, 1)
    namespace = f',engine_namespace="{engine.namespace}"' if engine.namespace else ""
    given = f'{gpu},engine="{engine.name}",role="{engine.role}"{namespace}'
    target.gauge("disagg_gpu_assignment_info", given, 1, seen)
    small = chance.uniform(0.0, 0.05, len(busy))
    target.counter("disagg_gpu_unattributed_seconds_total", f'{gpu},reason="stranger"', small)
    target.counter("disagg_gpu_unobserved_seconds_total", f'{gpu},reason="no_reading"', small[::-1])
    target.counter("disagg_gpu_throttle_seconds_total", f'{gpu},reason="power_cap"', busy)
    target.counter("disagg_gpu_throttle_seconds_total", f'{gpu},reason="thermal"', small)
    target.gauge("disagg_gpu_ecc_errors_total", f'{gpu},kind="uncorrected"', 2)
    target.gauge("disagg_gpu_ecc_errors_total", f'{gpu},kind="corrected"', target.times // 3600)
    lag = chance.uniform(6, 40, len(target.times))
    target.gauge(
        "disagg_gpu_watermark_timestamp_seconds", gpu, np.clip(target.times - lag, 0, None)
    )


def _sums(
    target: Target,
    engine: Engine,
    busy: Values,
    full: float,
    chance: np.random.Generator,
    seen: Mask,
) -> None:
    role = engine.role
    labels = f'role="{role}",{engine.pool},gpu_name="{engine.gpu_name}"'
    phase = "decode" if role == "mixed" else role
    other = "decode" if phase == "prefill" else "prefill"
    name = "disagg_node_phase_seconds_total"
    target.counter(name, f'{labels},phase="{phase}"', 0.96 * busy)
    target.counter(name, f'{labels},phase="{other}"', 0.04 * busy)
    target.counter(name, f'{labels},phase="idle"', 1 - busy)
    waited = (1 - busy) * chance.uniform(0.0, 0.3, len(busy))
    target.counter("disagg_node_idle_seconds_total", f'{labels},reason="kv_wait"', waited)
    tokens = f'role="{role}",{engine.pool},phase="{phase}"'
    target.counter("disagg_node_phase_tokens_total", tokens, 3000 * busy)
    target.counter("disagg_node_token_gpu_seconds_total", tokens, 0.96 * busy)
    target.gauge("disagg_node_role_gpus", f'role="{role}",gpu_name="{engine.gpu_name}"', 1, seen)
    used = np.maximum(full * busy + chance.uniform(0.0, 0.03, len(busy)), 1e-3)
    target.gauge("disagg_node_capacity_used_gpus", labels, used, seen)
    target.gauge("disagg_node_capacity_known_gpus", labels, 1, seen)


def _waits(
    target: Target, engine: Engine, asked: Values, chance: np.random.Generator, seen: Mask
) -> None:
    as_role = f'engine="{engine.name}",role="{engine.role}"'
    fast = asked * (1 - chance.uniform(0, 2 * engine.slow, len(asked)))
    families = [("inter_token_latency", as_role, "0.05", 20.0, "engine")]
    if engine.role != "prefill":
        families.append(("time_to_first_token", as_role, "0.5", 1.0, "engine"))
        users = f'source="{engine.source}",{engine.pool}'
        families.append(("time_to_first_token", users, "0.5", 1.0, "request"))
    for name, labels, bound, each, whose in families:
        family = f"disagg_{whose}_{name}_seconds"
        there = seen if whose == "engine" else None
        target.counter(f"{family}_bucket", f'{labels},le="{bound}"', each * fast, there)
        target.counter(f"{family}_bucket", f'{labels},le="+Inf"', each * asked, there)
        target.counter(f"{family}_count", labels, each * asked, there)


def _by_minute(mask: Mask, times: Values, minutes: int) -> Values:
    """Return whether the mask held in each minute, so that an absent engine has no work."""
    works = np.ones(minutes)
    np.minimum.at(works, (times // 60).astype(int), mask.astype(float))
    return works
