"""Capacities that the planner computes from what it learned in three minutes of simulation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from bench.capacity.learning import LENGTHS, RUN_SECONDS, SECOND_NS, STEPS_ONLY
from bench.pools.simulated import QUICK_STEPS

from disagg_cluster.planner.capacity.decode_pool import decode_capacity
from disagg_cluster.planner.capacity.learned.cost_families import FAMILIES, CostFamilies, Sample
from disagg_cluster.planner.capacity.learned.prometheus_costs import costs_of
from disagg_cluster.planner.capacity.pool_capacity import PoolCapacity, UndecidedCapacity
from disagg_cluster.planner.capacity.prefill_pool import prefill_capacity
from disagg_cluster.planner.capacity.priced_costs import priced_costs
from disagg_cluster.planner.capacity.request_mix import RequestMix
from disagg_cluster.planner.capacity.targets import Targets
from disagg_cluster.simulator.cluster.event_queue import Event
from disagg_cluster.simulator.cluster.spec import ClusterSpec, EngineSpec, disaggregated
from disagg_cluster.simulator.engine.hardware import H100, L40S, LLAMA_8B, LLAMA_70B, Gpu, Model
from disagg_cluster.simulator.engine.roofline import Noise
from disagg_cluster.simulator.load import Constant, Mix
from disagg_cluster.simulator.simulation import Simulation, add_devices, drive
from disagg_exporter.accounting import Ledger
from disagg_exporter.capacity.engine import StepCapacity
from disagg_exporter.capacity.stream import learn
from disagg_exporter.capacity.work import Inbox
from disagg_exporter.steps.messages import ControlMessage, MessageKind

_ENGINES = 2
_LEVELS = (0.3, 0.6, 0.9)
# The dispersions of the lengths in training: exp(spread²) - 1.
_MIX = RequestMix(1.0, 1155, 400, prompt_dispersion=0.896, output_dispersion=0.433)
_KINDS: tuple[tuple[Gpu, Model, int, Targets], ...] = (
    (H100, LLAMA_8B, 1, Targets(0.5, 0.015)),
    (L40S, LLAMA_8B, 1, Targets(2.0, 0.05)),
    (H100, LLAMA_70B, 4, Targets(1.5, 0.03)),
)
_CAPACITIES = {"prefill": prefill_capacity, "decode": decode_capacity}


class LearnedRow(NamedTuple):
    """One role of one kind of engine: its learned capacity, and that by its true prices.

    `level` is the share of its capacity that was used while learning.
    """

    name: str
    role: str
    level: float
    bound: str
    learned: float
    priced: float

    @property
    def error_percent(self) -> float:
        """Return by how much the learned capacity promises too much, in percent."""
        return (self.learned / self.priced - 1) * 100


def learned_rows() -> Iterator[LearnedRow]:
    """Yield a row for each kind and role of engine, at several levels of load."""
    for gpu, model, gpus, targets in _KINDS:
        costs = priced_costs(gpu, model, gpus)
        for role, capacity in _CAPACITIES.items():
            true = capacity(costs, _MIX, targets, _ENGINES)
            if isinstance(true, UndecidedCapacity):
                raise SystemExit(f"{model.name} on {gpu.name}: {true.reason}")
            for level in _LEVELS:
                rate = level * true.requests_per_second / _ENGINES
                families = _learned_families(role, gpu, model, gpus, rate)
                (found,) = costs_of(families).values()
                if isinstance(found, UndecidedCapacity):
                    raise SystemExit(f"{model.name} on {gpu.name}: {found.reason}")
                # Costs that no page exposes are not under test here.
                known = replace(found, shape=replace(found.shape, kv_tokens=costs.shape.kv_tokens))
                there = capacity(known, _MIX, targets, _ENGINES)
                assert isinstance(there, PoolCapacity)
                yield LearnedRow(
                    f"{gpus} x {gpu.name.split()[1]}, {model.name.split('/')[1]}",
                    role,
                    level,
                    there.bound,
                    there.requests_per_second,
                    true.requests_per_second,
                )


def _learned_families(role: str, gpu: Gpu, model: Model, gpus: int, rate: float) -> CostFamilies:
    """Return the cost families on the page of an engine under this load, with a quick partner."""
    engine = f"{role}-0"

    def spec(each: EngineSpec) -> EngineSpec:
        return each if each.name == engine else replace(each, costs=QUICK_STEPS)

    pair = disaggregated(1, 1, gpus_each=gpus, gpu=gpu, model=model, noise=Noise(step_ratio=0.10))
    output = 4.0 if role == "prefill" else _MIX.output_tokens
    simulation = Simulation(
        ClusterSpec(tuple(map(spec, pair))),
        Constant(Mix(rate, _MIX.prompt_tokens, output)),
        lengths=LENGTHS,
        reporting=STEPS_ONLY,
        seed=1,
    )
    ledgers = {node: Ledger() for node in simulation.nodes}
    add_devices(ledgers, simulation)
    capacity, inbox, next_ns = StepCapacity(0.05), Inbox(), SECOND_NS

    def watch(t_ns: int, event: Event) -> None:
        nonlocal next_ns
        while next_ns <= t_ns:
            received = list(inbox.take())
            learn(pair for key, some in received for pair in capacity.ingest(key, some))
            capacity.advance(next_ns)
            next_ns += SECOND_NS
        if isinstance(event, ControlMessage) and event.key.engine == engine and event.step:
            if event.kind is MessageKind.STEP:
                inbox.step(event.key, event.step, overlapped=False)
            else:
                inbox.heartbeat(event.key, event.step)

    end_ns = RUN_SECONDS * SECOND_NS
    drive(ledgers, simulation, end_ns, watch=watch)
    (ledger,) = ledgers.values()
    (account,) = (each for each in ledger.engine_accounts(end_ns) if each.engine == engine)
    of = {"engine": engine}
    families: dict[str, list[Sample]] = {name: [] for name in FAMILIES}
    families["disagg_engine_info"] = [({**of, "role": role, "model_name": model.name}, 1)]
    for number in range(gpus):
        families["disagg_gpu_assignment_info"].append(({**of, "gpu": str(number)}, 1))
        families["disagg_gpu_info"].append(({"gpu": str(number), "gpu_name": gpu.name}, 1))
    families["disagg_engine_prefill_curve_tokens_per_second"] = [
        ({**of, "step_tokens": str(tokens)}, per_second)
        for tokens, per_second in capacity.prefill_curve
    ]
    families["disagg_engine_decode_curve_seconds"] = [
        ({**of, "batch": str(batch)}, seconds) for batch, seconds in capacity.decode_curve
    ]
    for step in account.reference_steps:
        point = {**of, "point": step.point}
        families["disagg_engine_step_cost_seconds"].append((point, step.seconds))
        families["disagg_engine_step_cost_error_seconds"].append((point, step.error_seconds))
    return CostFamilies(families)
