"""A simulation's GPU-seconds, through the real accounting: none is lost or counted twice."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from disagg_cluster.simulator.cluster.spec import BRIEF, ClusterSpec, Reporting, disaggregated
from disagg_cluster.simulator.engine.hardware import H100, LLAMA_8B, LLAMA_70B
from disagg_cluster.simulator.engine.roofline import Noise
from disagg_cluster.simulator.engine_faults import Crash, LateRecords, LostRecords, Stuck
from disagg_cluster.simulator.load import Constant, Lengths, Mix, Shifting
from disagg_cluster.simulator.simulation import Simulation, add_devices, drive
from disagg_exporter.accounting import Ledger
from disagg_exporter.model import Phase, Reason, Use
from support.simulations import StoppedLoad, account, alone, busy_seconds, engine_account, pair

LOAD = StoppedLoad(Constant(Mix(3, 1500, 60)), 20)
LENGTHS = Lengths(0.6, 0.6, reuse_ratio=0.3)
END = 32.0
COARSE = replace(BRIEF, page_seconds=None)

CLUSTERS = {
    "two and two": pair(2, 2),
    "with noise and drift": pair(noise=Noise(0.05, 0.2, 30.0)),
    "tensor parallel": pair(gpus_each=4, model=LLAMA_70B),
    "mixed": alone(),
    "short of cache": alone(kv_tokens=4000),
    "in small chunks": alone(step_tokens=512),
    "few at once": pair(running_requests=2),
}


def unbalanced(ledger: Ledger) -> list[str]:
    """Devices whose uses do not sum to weight × (watermark − start): invariant a."""
    wrong = []
    for books in ledger.device_accounts():
        wall = (books.watermark_ns - books.start_ns) / 1e9 * books.device.weight
        if abs(sum(books.cells.values()) - wall) > 1e-6:
            wrong.append(books.device.gpu)
    return wrong


@pytest.mark.parametrize("reporting", [Reporting(page_seconds=None), COARSE], ids=["steps", "runs"])
@pytest.mark.parametrize("name", CLUSTERS)
def test_engines_are_credited_with_the_time_their_steps_held(
    name: str, reporting: Reporting
) -> None:
    simulation = Simulation(CLUSTERS[name], LOAD, lengths=LENGTHS, reporting=reporting, seed=3)

    ledger, events = account(simulation, END)

    assert len(events.requests) > 30
    assert unbalanced(ledger) == []
    for engine, server in simulation.servers.items():
        spent = simulation.spent_seconds(engine)
        assert spent > 0
        assert busy_seconds(ledger, engine, END) == pytest.approx(spent, abs=1e-6)
        assert server.gpus.busy_ns == sum(events.steps(engine)[-1].totals.elapsed_ns)


def test_steps_and_runs_report_the_same_time_and_tokens() -> None:
    """The same simulation in fewer records: its totals are equal to the nanosecond."""
    told = []
    for reporting in (Reporting(page_seconds=None), COARSE):
        simulation = Simulation(pair(2, 2), LOAD, lengths=LENGTHS, reporting=reporting, seed=3)
        _, events = account(simulation, END)
        steps = [events.steps(name) for name in simulation.servers]
        totals = [records[-1].totals for records in steps]
        told.append((totals, events.requests, sum(map(len, steps))))

    (totals, requests, many), (same_totals, same_requests, few) = told
    assert totals == same_totals
    assert requests == same_requests
    assert few < many / 5


def test_preemption_in_a_small_cache_loses_no_time() -> None:
    load = StoppedLoad(Constant(Mix(3, 500, 300)), 20)
    simulation = Simulation(CLUSTERS["short of cache"], load, reporting=COARSE, seed=3)
    ledger, events = account(simulation, END)

    steps = events.steps("mixed-0")
    assert sum(step.preemptions for step in steps) > 0
    assert max(step.waiting for step in steps) > 0
    assert all(step.kv_usage_ratio <= 1 for step in steps)
    assert not any(ended.failed for ended in events.requests)
    spent = simulation.spent_seconds("mixed-0")
    assert busy_seconds(ledger, "mixed-0", END) == pytest.approx(spent, abs=1e-6)


def test_disaggregated_engines_work_in_their_own_phase_only() -> None:
    simulation = Simulation(pair(2, 2), LOAD, lengths=LENGTHS, reporting=COARSE, seed=3)
    ledger, _ = account(simulation, END)

    for name in simulation.servers:
        phases = {phase for _, phase in engine_account(ledger, name, END).gpu_seconds}
        assert phases == {Phase.PREFILL if name.startswith("prefill") else Phase.DECODE}


def test_tokens_are_those_of_the_requests() -> None:
    """Prompts are computed once except for cached parts; one decode token is recomputed."""
    simulation = Simulation(pair(), LOAD, lengths=LENGTHS, reporting=COARSE, seed=3)
    ledger, events = account(simulation, END)

    prompts = sum(ended.request.prompt_tokens for ended in events.requests)
    outputs = sum(ended.request.output_tokens for ended in events.requests)
    cached = sum(step.cached_tokens for step in events.steps("prefill-0"))
    tokens = {
        phase: count
        for name in simulation.servers
        for (_, phase), count in engine_account(ledger, name, END).phase_tokens.items()
        if count
    }
    assert cached > 0
    assert tokens == {Phase.PREFILL: prompts - cached, Phase.DECODE: outputs}


def test_activity_of_the_gpus_is_explained_by_the_steps() -> None:
    """Readings and steps agree: almost nothing is left unattributed."""
    simulation = Simulation(pair(), LOAD, lengths=LENGTHS, seed=3)
    ledger, _ = account(simulation, END)

    strange = sum(
        seconds
        for books in ledger.device_accounts()
        for cell, seconds in books.cells.items()
        if cell.use is Use.UNATTRIBUTED
    )
    assert strange < 0.01 * sum(simulation.spent_seconds(name) for name in simulation.servers)


def test_lost_records_are_recovered_from_totals() -> None:
    faults = [LostRecords(5.0, 10.0, "decode-0", ratio=0.3)]
    simulation = Simulation(pair(), LOAD, lengths=LENGTHS, faults=faults, seed=3)

    ledger, events = account(simulation, END)

    books = engine_account(ledger, "decode-0", END)
    drops = events.steps("decode-0")[-1].totals.drops
    assert books.lost_records == drops > 100
    assert unbalanced(ledger) == []
    spent = simulation.spent_seconds("decode-0")
    assert busy_seconds(ledger, "decode-0", END) == pytest.approx(spent, abs=1e-3)


def test_records_that_are_late_but_not_too_late_lose_nothing() -> None:
    faults = [LateRecords(5.0, 10.0, "decode-0", late_seconds=4.0)]
    simulation = Simulation(pair(), LOAD, lengths=LENGTHS, faults=faults, seed=3)

    ledger, events = account(simulation, END)

    late = [t_ns - message.t_ns for t_ns, message in events.messages]
    assert max(late) == pytest.approx(4e9, rel=0.01)
    assert unbalanced(ledger) == []
    books = engine_account(ledger, "decode-0", END)
    spent = simulation.spent_seconds("decode-0")
    assert sum(books.gpu_seconds.values()) == pytest.approx(spent, abs=1e-3)


@pytest.mark.parametrize("reporting", [Reporting(page_seconds=None), COARSE], ids=["steps", "runs"])
def test_a_crash_costs_no_more_than_the_step_under_way(reporting: Reporting) -> None:
    faults = [Crash(10.0, "decode-0", restart_after_seconds=1.0)]
    busy = StoppedLoad(Constant(Mix(3, 1500, 400)), 20)
    simulation = Simulation(
        pair(start_seconds=3.0), busy, faults=faults, reporting=reporting, seed=3
    )

    ledger, _ = account(simulation, END)

    spent, credited = simulation.spent_seconds("decode-0"), busy_seconds(ledger, "decode-0", END)
    assert spent - 0.02 < credited < spent
    assert unbalanced(ledger) == []
    books = next(b for b in ledger.device_accounts() if b.device.gpu.endswith("1"))
    idle = {cell.reason: s for cell, s in books.cells.items() if cell.use is Use.IDLE}
    assert idle[Reason.NO_ENGINE] == pytest.approx(1.0, abs=0.01)
    assert idle[Reason.STARTING] == pytest.approx(3.0, abs=0.01)


def test_a_stuck_engine_holds_its_gpus_until_its_step_ends() -> None:
    faults = [Stuck(10.0, 8.0, "decode-0")]
    simulation = Simulation(pair(), LOAD, lengths=LENGTHS, faults=faults, seed=3)

    ledger, events = account(simulation, END)

    assert max(step.elapsed_ns for step in events.steps("decode-0")) > 8e9
    assert unbalanced(ledger) == []


def test_each_node_has_separate_accounting() -> None:
    cluster = ClusterSpec(
        tuple(
            replace(spec, node=f"node-{spec.role}")
            for spec in disaggregated(2, 2, model=LLAMA_8B, gpu=H100)
        )
    )
    simulation = Simulation(cluster, LOAD, lengths=LENGTHS, reporting=COARSE, seed=3)
    ledgers = {node: Ledger() for node in simulation.nodes}
    add_devices(ledgers, simulation)
    drive(ledgers, simulation, round(END * 1e9))

    assert set(ledgers) == {"node-prefill", "node-decode"}
    for node, ledger in ledgers.items():
        assert unbalanced(ledger) == []
        for books in ledger.engine_accounts(round(END * 1e9)):
            assert f"node-{books.role}" == node
            spent = simulation.spent_seconds(books.engine)
            assert sum(books.gpu_seconds.values()) == pytest.approx(spent, abs=1e-6)


def test_a_shifting_load_moves_the_share_of_the_phases() -> None:
    high, low = Mix(6, 3000, 10), Mix(2, 200, 150)
    simulation = Simulation(pair(), Shifting(high, low, 80.0), reporting=COARSE, seed=3)
    shares = []
    for end in (40, 80):
        before = [simulation.spent_seconds(name) for name in ("prefill-0", "decode-0")]
        for _ in simulation.events(end * 10**9):
            pass
        prefill, decode = (
            simulation.spent_seconds(name) - was
            for name, was in zip(("prefill-0", "decode-0"), before, strict=True)
        )
        shares.append(prefill / (prefill + decode))

    assert shares[0] > 2 * shares[1]


def test_joules_are_divided_by_each_phases_power() -> None:
    """Prefill draws 689 W and decode 380 to 450 W here, so time alone would bill it too little."""
    load = Shifting(Mix(6, 1500, 120), Mix(3, 300, 150), period_seconds=60)
    lengths = Lengths(prompt_spread=0.6, output_spread=0.6)
    simulation = Simulation(alone(step_tokens=2048), load, lengths=lengths, seed=3)
    ledger, _ = account(simulation, 120)

    (device,) = ledger.device_accounts()
    assert device.watts[Use.PREFILL] == pytest.approx(689, rel=0.1)
    assert device.watts[Use.DECODE] == pytest.approx(415, rel=0.1)
    seconds, joules = Counter[Use](), Counter[Use]()
    for cell, used in device.cells.items():
        seconds[cell.use] += used
    for cell, microjoules in (device.microjoules or {}).items():
        joules[cell.use] += microjoules / 1e6
    prefill, decode = (joules[use] / seconds[use] for use in (Use.PREFILL, Use.DECODE))
    assert prefill > 1.25 * decode
