from __future__ import annotations

import random
from dataclasses import replace

import pytest

from disagg_cluster.simulator.cluster.network import KvNetwork, LinkSpec, Policy, RequestRouter
from disagg_cluster.simulator.cluster.spec import (
    ClusterSpec,
    EngineSpec,
    SpecError,
    disaggregated,
)
from disagg_cluster.simulator.engine.hardware import H100, LLAMA_70B
from disagg_cluster.simulator.engine_faults import Crash
from disagg_cluster.simulator.load import Constant, Mix
from disagg_cluster.simulator.network_faults import FailingTransfer, SlowTransfer
from disagg_cluster.simulator.simulation import Simulation
from disagg_exporter.model import Role
from support.simulations import QUIET, SimulationEvents, StoppedLoad, alone, listen, pair

LOAD = StoppedLoad(Constant(Mix(4, 1000, 20)), 20)


def heard_of(cluster: ClusterSpec, *faults: object, seconds: float = 60.0) -> SimulationEvents:
    simulation = Simulation(cluster, LOAD, faults=faults, reporting=QUIET, seed=1)  # type: ignore[arg-type]
    return listen(simulation, seconds)


def test_round_robin_takes_turns_and_least_loaded_counts() -> None:
    turns, counts = RequestRouter(Policy.ROUND_ROBIN), RequestRouter(Policy.LEAST_LOADED)
    names = ["a", "b", "c"]

    assert [turns.choose(names) for _ in range(4)] == ["a", "b", "c", "a"]
    assert [counts.choose(names) for _ in range(3)] == ["a", "b", "c"]
    counts.end("b")
    assert counts.choose(names) == "b"


def test_an_engine_at_its_limit_gets_no_more() -> None:
    router = RequestRouter(Policy.ROUND_ROBIN, most_in_flight=1)

    assert [router.choose(["a", "b"]) for _ in range(3)] == ["a", "b", None]
    router.end("b")
    assert router.choose(["a", "b"]) == "b"


def test_transfers_queue_at_both_ends() -> None:
    """A gigabyte a second: each takes a second and the latency, one after the other."""
    transfer = KvNetwork(LinkSpec(1e9, 0.5), random.Random(0))

    first = transfer.start_transfer("p0", "d0", 10**9, 0)
    same_target = transfer.start_transfer("p1", "d0", 10**9, 0)
    others = transfer.start_transfer("p2", "d1", 10**9, 0)

    assert (first.start_ns, first.end_ns) == (0, 1_500_000_000)
    assert (same_target.start_ns, same_target.end_ns) == (1_500_000_000, 3_000_000_000)
    assert others.end_ns == 1_500_000_000


def test_a_request_is_prefilled_by_one_engine_and_decoded_by_another() -> None:
    events = heard_of(pair(2, 2))

    assert {ended.prefill_engine for ended in events.requests} == {"prefill-0", "prefill-1"}
    assert {ended.decode_engine for ended in events.requests} == {"decode-0", "decode-1"}
    for ended in events.requests:
        assert ended.first_token_ns is not None
        assert ended.request.arrived_ns < ended.first_token_ns < ended.ended_ns


def test_a_mixed_engine_does_prefill_and_decode() -> None:
    events = heard_of(alone())

    assert {(e.prefill_engine, e.decode_engine) for e in events.requests} == {
        ("mixed-0", "mixed-0")
    }


def test_the_first_token_waits_for_the_kv() -> None:
    """131 MB a prompt: 5 ms on the way, or 100; so few that none waits for another."""
    rare = StoppedLoad(Constant(Mix(0.2, 1000, 20)), 300)

    def mean_wait(*faults: SlowTransfer) -> float:
        simulation = Simulation(pair(), rare, faults=faults, reporting=QUIET, seed=1)
        ended = listen(simulation, 400).requests
        return sum((e.first_token_ns or 0) - e.request.arrived_ns for e in ended) / len(ended) / 1e9

    transfer_seconds = 0.002 + 131_072_000 / 40e9
    slower = mean_wait(SlowTransfer(0, 400, factor=20)) - mean_wait()
    assert slower == pytest.approx(19 * transfer_seconds, rel=0.05)


def test_prompts_whose_transfer_fails_are_computed_by_the_decode_engine() -> None:
    """Leakage: prefill work where there should be none. The KV left behind expires."""
    faults = [FailingTransfer(0, 60, ratio=0.3)]
    cluster = replace(pair(), lease_seconds=30.0)
    simulation = Simulation(cluster, LOAD, faults=faults, seed=1)
    events = listen(simulation, 60)
    steps = events.steps("decode-0")

    failed = _last_value(events, "decode-0", "nixl_num_failed_transfers_total")
    assert 10 < failed < len(events.requests) / 2
    assert not any(ended.failed for ended in events.requests)
    assert sum(step.computed_tokens for step in steps) == 1000 * failed
    assert sum(step.external_tokens for step in steps) == 1000 * (len(events.requests) - failed)
    assert _last_value(events, "prefill-0", "nixl_num_kv_expired_reqs_total") == failed
    assert _last_value(events, "prefill-0", "kv_cache_usage_perc") == 0


def test_only_requests_of_a_dying_engine_fail() -> None:
    events = heard_of(pair(1, 2), Crash(10.0, "decode-0", restart_after_seconds=None))
    failed = [ended for ended in events.requests if ended.failed]

    assert failed
    assert {(ended.decode_engine, ended.ended_ns) for ended in failed} == {("decode-0", 10**10)}
    after = [e for e in events.requests if e.ended_ns > 10**10]
    assert {ended.decode_engine for ended in after} == {"decode-1"}


def test_kv_that_a_dead_engine_does_not_fetch_any_more_expires() -> None:
    faults = [SlowTransfer(0, 60, factor=20), Crash(10.0, "decode-0", None)]
    cluster = replace(pair(1, 2), lease_seconds=20.0)
    events = listen(Simulation(cluster, LOAD, faults=faults, seed=1), 60)

    assert _last_value(events, "prefill-0", "nixl_num_kv_expired_reqs_total") > 0
    assert _last_value(events, "prefill-0", "kv_cache_usage_perc") == 0


def test_the_router_holds_requests_while_no_engine_is_ready() -> None:
    cluster = pair(start_seconds=5.0)
    simulation = Simulation(
        cluster, LOAD, faults=[Crash(5.0, "prefill-0")], reporting=QUIET, seed=1
    )
    listen(simulation, 10.0)
    queued = simulation.request_flow.queued

    listen(simulation, 60.0)

    assert queued > 5
    assert simulation.request_flow.queued == simulation.request_flow.under_way == 0
    assert simulation.request_flow.failed <= 4


def test_a_request_that_no_cache_could_hold_fails_at_once() -> None:
    events = heard_of(alone(kv_tokens=512))

    assert all(ended.failed for ended in events.requests)
    assert len(events.requests) > 10


@pytest.mark.parametrize(
    ("engines", "why"),
    [
        ((EngineSpec("a", Role.PREFILL, ("0",)),), "needs a decode engine"),
        ((EngineSpec("a", Role.MIXED, ("0",)), EngineSpec("b", Role.DECODE, ("1",))), "needs a"),
        ((EngineSpec("a", Role.MIXED, ("0",)), EngineSpec("b", Role.MIXED, ("0",))), "same"),
        ((EngineSpec("a", Role.ENCODE, ("0",)),), "prefill, decode or mixed"),
        ((), "one at least"),
    ],
)
def test_impossible_clusters_are_refused(engines: tuple[EngineSpec, ...], why: str) -> None:
    with pytest.raises(SpecError, match=why):
        ClusterSpec(engines)


def test_a_model_too_large_for_its_gpus_is_refused() -> None:
    cluster = ClusterSpec(disaggregated(1, 1, gpu=H100, model=LLAMA_70B))

    with pytest.raises(SpecError, match="no room for a KV cache on 1 of NVIDIA H100"):
        Simulation(cluster, LOAD)


def test_a_fault_of_an_unknown_engine_is_refused() -> None:
    with pytest.raises(SpecError, match="nobody"):
        Simulation(alone(), LOAD, faults=[Crash(1.0, "nobody")])


def _last_value(events: SimulationEvents, engine: str, name: str) -> float:
    text = next(page.text for page in reversed(events.pages) if page.engine == engine)
    line = next(line for line in text.splitlines() if line.startswith(f"vllm:{name}{{"))
    return float(line.rsplit(" ", 1)[1])
