from __future__ import annotations

import re
from itertools import pairwise
from statistics import fmean

import pytest

from disagg_cluster.simulator.cluster.network import Policy, RequestRouter
from disagg_cluster.simulator.cluster.spec import ClusterSpec, Reporting, SpecError
from disagg_cluster.simulator.engine_faults import Crash, SlowHost, SlowMixedSteps
from disagg_cluster.simulator.fault import Fault
from disagg_cluster.simulator.gpu_faults import MemoryErrors, StrangerOnGpu, Throttled
from disagg_cluster.simulator.limit_faults import NoPrefixCaching, Resized
from disagg_cluster.simulator.load import Constant, Lengths, Mix
from disagg_cluster.simulator.load_faults import (
    BoundedRouter,
    LatencyFloor,
    LongToOne,
    OtherLengths,
    Skewed,
    SlowRouter,
    Surge,
)
from disagg_cluster.simulator.network_faults import FailingTransfer, SlowTransfer
from disagg_cluster.simulator.simulation import Simulation
from disagg_exporter.engine_pages.fronts import parse_front_page
from disagg_exporter.model import DeviceReading, Step, Throttle, Total
from support.simulations import SimulationEvents, StoppedLoad, alone, listen, pair

SECOND = 10**9
MIX = Mix(3, 1500, 60)
GPU = "GPU-sim-node-0000"


def events_with(
    *faults: Fault,
    cluster: ClusterSpec | None = None,
    mix: Mix = MIX,
    lengths: Lengths | None = None,
    sweep_seconds: float | None = None,
    page_seconds: float | None = None,
) -> SimulationEvents:
    """Twenty seconds of a load; faults begin at ten, before that all is normal."""
    simulation = Simulation(
        cluster or pair(),
        StoppedLoad(Constant(mix), 20),
        lengths=lengths,
        faults=faults,
        reporting=Reporting(
            heartbeat_seconds=None, page_seconds=page_seconds, sweep_seconds=sweep_seconds
        ),
        seed=5,
    )
    return listen(simulation, 60)


def between(steps: list[Step], start: float, end: float) -> list[Step]:
    return [s for s in steps if start * SECOND < s.t_ns < end * SECOND and s.elapsed_ns]


def wait_seconds(events: SimulationEvents, start: float = 10, end: float = 20) -> float:
    """The mean time to first token of requests that arrived in between."""
    return fmean(
        (ended.first_token_ns - ended.request.arrived_ns) / SECOND
        for ended in events.requests
        if ended.first_token_ns and start * SECOND < ended.request.arrived_ns < end * SECOND
    )


def entries(events: SimulationEvents, start: float, end: float) -> list[str]:
    """The prefill engine of each request that arrived in between."""
    return [
        ended.prefill_engine
        for ended in events.requests
        if start * SECOND < ended.request.arrived_ns < end * SECOND
    ]


def test_a_slow_host_widens_gaps_and_not_steps() -> None:
    steps = events_with(SlowHost(10.0, 50.0, "decode-0", gap_seconds=0.03)).steps("decode-0")

    def gaps(some: list[Step]) -> float:
        return min(two.t_ns - one.t_ns - two.elapsed_ns for one, two in pairwise(some))

    well, ill = between(steps, 5, 10), between(steps, 11, 20)
    assert gaps(well) == pytest.approx(0.5e6, abs=0.1e6)
    assert gaps(ill) == pytest.approx(30e6, abs=0.1e6)
    assert min(s.elapsed_ns for s in ill) == pytest.approx(min(s.elapsed_ns for s in well), rel=0.1)


def test_slow_mixed_steps_leave_steps_of_one_phase_as_they_are() -> None:
    faults = [SlowMixedSteps(0.0, 60.0, "mixed-0", factor=3.0)]
    well = events_with(cluster=alone()).steps("mixed-0")
    ill = events_with(*faults, cluster=alone()).steps("mixed-0")

    def shortest(steps: list[Step], *, mixed: bool) -> int:
        return min(
            s.elapsed_ns
            for s in steps
            if s.context_tokens >= 1500 and bool(s.generation_requests) is mixed
        )

    assert shortest(ill, mixed=False) == shortest(well, mixed=False)
    assert shortest(ill, mixed=True) > 2 * shortest(well, mixed=True)


def test_a_foreign_process_slows_steps_and_is_listed() -> None:
    fault = StrangerOnGpu(10.0, 50.0, GPU, sm_ratio=0.5, memory_bytes=10**9)
    events = events_with(fault, sweep_seconds=0.5)

    steps = events.steps("prefill-0")
    shortest = [min(s.elapsed_ns for s in between(steps, *span)) for span in ((0, 10), (10, 20))]
    assert shortest[1] == pytest.approx(2 * shortest[0], rel=0.02)
    before, after = (reading_at(events, GPU, t_seconds) for t_seconds in (9, 15))
    assert after.process_ratios is not None
    assert after.process_memory is not None
    (pid, ratio), (_, memory_bytes) = after.process_ratios[-1], after.process_memory[-1]
    assert (ratio, memory_bytes) == (0.5, 10**9)
    assert pid in after.pids
    assert pid not in before.pids
    assert after.busy_ratio is not None
    assert after.busy_ratio >= 0.5


def reading_at(events: SimulationEvents, gpu: str, t_seconds: float) -> DeviceReading:
    return next(
        reading
        for sweep in events.sweeps
        for reading in sweep.readings
        if reading.gpu == gpu and reading.t_ns >= t_seconds * SECOND
    )


def test_gpus_waiting_for_a_throttled_one_keep_their_clock() -> None:
    other = "GPU-sim-node-0001"
    events = events_with(
        Throttled(0.0, 60.0, GPU, 0.4, Throttle.HW_SLOWDOWN),
        cluster=pair(gpus_each=2),
        sweep_seconds=5.0,
    )

    slow, waiting = reading_at(events, GPU, 10), reading_at(events, other, 10)
    assert slow.busy_ratio == waiting.busy_ratio
    assert (slow.throttles, waiting.throttles) == ((Throttle.HW_SLOWDOWN,), ())
    for name in ("sm_clock_hertz", "power_watts"):
        assert getattr(slow, name) < getattr(waiting, name)
    assert slow.tensor_ratio is not None
    assert waiting.tensor_ratio is not None
    assert slow.tensor_ratio == pytest.approx(waiting.tensor_ratio / 0.4, rel=0.01)


def test_a_heat_wave_shows_in_the_temperature_and_a_cap_in_the_limit() -> None:
    hot = events_with(Throttled(0.0, 60.0, GPU, 0.5), sweep_seconds=5.0)
    capped = events_with(Throttled(0.0, 60.0, GPU, 0.5, Throttle.POWER_CAP), sweep_seconds=5.0)

    assert (reading_at(hot, GPU, 10).temperature_celsius or 0) > 80
    assert reading_at(hot, GPU, 10).power_limit_watts == 700
    assert reading_at(capped, GPU, 10).power_limit_watts == 350


def test_memory_errors_accumulate() -> None:
    faults = [MemoryErrors(5.0, GPU, 3), MemoryErrors(8.0, GPU, 4)]
    events = events_with(*faults, sweep_seconds=1.0)

    counts = [reading_at(events, GPU, t_seconds).ecc_corrected_errors for t_seconds in (1, 6, 9)]
    assert counts == [0, 3, 7]


def test_a_skewed_router_gives_turns_by_weights() -> None:
    fault = Skewed(10.0, 50.0, {"prefill-1": 8.0})
    events = events_with(fault, cluster=pair(3), mix=Mix(20, 100, 2))

    before, after = entries(events, 0, 10), entries(events, 10, 20)
    assert before.count("prefill-1") / len(before) == pytest.approx(1 / 3, abs=0.01)
    assert after.count("prefill-1") / len(after) == pytest.approx(0.8, abs=0.02)


def test_a_skewed_least_loaded_router_favours_an_engine_by_weight() -> None:
    router = RequestRouter(Policy.LEAST_LOADED)
    router.weights = {"b": 3.0}

    chosen = [router.choose(["a", "b"]) for _ in range(8)]
    assert (chosen.count("b"), chosen.count("a")) == (6, 2)


def test_long_prompts_stick_to_one_engine_and_short_ones_do_not() -> None:
    fault = LongToOne(10.0, 50.0, "prefill-1", least_tokens=1500)
    events = events_with(fault, cluster=pair(3), lengths=Lengths(prompt_spread=0.5))

    later = [e for e in events.requests if 10 * SECOND < e.request.arrived_ns < 20 * SECOND]
    long = {e.prefill_engine for e in later if e.request.prompt_tokens >= 1500}
    short = {e.prefill_engine for e in later if e.request.prompt_tokens < 1500}
    assert long == {"prefill-1"}
    assert short == {"prefill-0", "prefill-1", "prefill-2"}


def test_a_surge_multiplies_the_requests() -> None:
    events = events_with(Surge(10.0, 50.0, factor=3.0), mix=Mix(20, 100, 2))

    before, after = (len(entries(events, *span)) for span in ((0, 10), (10, 20)))
    assert after / before == pytest.approx(3, rel=0.15)


def test_giant_prompts_and_longer_outputs_occur_while_lengths_differ() -> None:
    usual = Lengths()
    then = Lengths(giant_ratio=0.2, giant_tokens=20_000, output_factor=2.0)
    events = events_with(OtherLengths(10.0, 50.0, then, usual))

    requests = [ended.request for ended in events.requests]
    before = {r.prompt_tokens for r in requests if r.arrived_ns < 10 * SECOND}
    after = {r.prompt_tokens for r in requests if r.arrived_ns > 10.5 * SECOND}
    assert (before, after) == ({1500}, {1500, 20_000})
    assert {r.output_tokens for r in requests if r.arrived_ns > 10.5 * SECOND} == {120}


def test_a_slow_router_delays_requests_and_reports_how_many_wait() -> None:
    simulation = Simulation(
        pair(),
        StoppedLoad(Constant(MIX), 20),
        faults=[SlowRouter(10.0, 50.0, seconds_each=1.0)],
        reporting=Reporting(page_seconds=None),
        seed=5,
    )
    events = listen(simulation, 20)
    page = parse_front_page(simulation.request_flow.front.render().encode(), 1)

    assert page.models[0].waiting == simulation.request_flow.queued > 10
    assert wait_seconds(events, 10, 14) > 5 * wait_seconds(events, 0, 10)


def test_a_bounded_router_holds_back_requests() -> None:
    fault = BoundedRouter(0.0, 60.0, most_in_flight=1)
    simulation = Simulation(
        alone(),
        StoppedLoad(Constant(MIX), 20),
        faults=[fault],
        reporting=Reporting(page_seconds=None),
        seed=5,
    )
    events = listen(simulation, 20)

    assert max(step.running + step.waiting for step in events.steps("mixed-0")) == 1
    assert simulation.request_flow.queued > 5


@pytest.mark.parametrize("where", ["before_entry_seconds", "before_decode_seconds"])
def test_a_latency_floor_is_added_to_each_wait(where: str) -> None:
    few = Mix(0.5, 1500, 10)
    fault = LatencyFloor(10.0, 50.0, **{where: 2.0})

    ill, well = events_with(fault, mix=few), events_with(mix=few)

    assert wait_seconds(ill) == pytest.approx(wait_seconds(well) + 2.0, abs=0.02)
    assert wait_seconds(ill, 0, 10) == wait_seconds(well, 0, 10)


def test_smaller_limits_hold_from_the_next_step_on_and_end() -> None:
    fault = Resized(5.0, 5.0, "prefill-0", step_tokens=256)
    steps = events_with(fault).steps("prefill-0")

    most = [
        max(s.context_tokens for s in between(steps, *span))
        for span in ((0, 5), (5.3, 10), (10.3, 20))
    ]
    assert most[1] == 256
    assert min(most[0], most[2]) >= 1500


def test_a_smaller_cache_preempts_until_what_is_in_it_fits() -> None:
    many = Mix(3, 1500, 400)
    fault = Resized(10.0, 50.0, "decode-0", kv_ratio=0.02)
    steps = events_with(fault, mix=many).steps("decode-0")

    assert all(s.kv_usage_ratio <= 1 for s in between(steps, 10.5, 20))
    assert sum(s.preemptions for s in between(steps, 10, 20)) > 0
    assert max(s.running for s in between(steps, 12, 20)) < max(
        s.running for s in between(steps, 0, 10)
    )


def test_a_smaller_cache_is_reported_on_the_engines_page() -> None:
    events = events_with(Resized(5.0, 5.0, "decode-0", kv_ratio=0.5), page_seconds=1.0)

    pages = [page.text for page in events.pages if page.engine == "decode-0"]
    found = [re.search(r'kv_cache_size_tokens="(\d+)"', text) for text in pages]
    sizes = [int(each[1]) for each in found if each]
    assert min(sizes) == pytest.approx(max(sizes) / 2, rel=0.01)
    assert sizes[0] == sizes[-1] == max(sizes)


def test_reserved_output_room_delays_prompts_though_the_cache_is_empty() -> None:
    """sglang#8816: it looks like slow prefill, and grows with the outputs."""
    fault = Resized(0.0, 60.0, "decode-0", reserved_output_tokens=100_000)
    events = events_with(fault, mix=Mix(3, 1500, 200))

    steps = events.steps("decode-0")
    assert max(s.kv_usage_ratio for s in steps) < 0.05
    assert max(s.running for s in steps) == 4
    assert max(s.waiting for s in steps) > 5
    assert wait_seconds(events) > 2


def test_an_engine_without_prefix_caching_recomputes_prefixes() -> None:
    fault = NoPrefixCaching(10.0, 50.0, "prefill-0")
    lengths = Lengths(reuse_ratio=1.0, prefixes=2, prefix_tokens=1024)
    steps = events_with(fault, lengths=lengths).steps("prefill-0")

    cached = [sum(s.cached_tokens for s in between(steps, *span)) for span in ((5, 10), (11, 20))]
    assert cached[0] > 1024
    assert cached[1] == 0


def test_slow_first_steps_after_a_restart_fade() -> None:
    cluster = pair(start_seconds=2.0, cold_factor=5.0, warm_up_seconds=6.0)
    steps = events_with(Crash(5.0, "prefill-0", 1.0), cluster=cluster).steps("prefill-0")

    usual = min(s.elapsed_ns for s in between(steps, 0, 5))
    first, last = between(steps, 8, 8.8)[0], between(steps, 15, 20)
    assert first.elapsed_ns > 4 * usual
    assert min(s.elapsed_ns for s in last) == pytest.approx(usual, rel=0.01)


@pytest.mark.parametrize("engine", ["prefill-1", "decode-0"])
def test_a_slow_link_of_one_engine_delays_its_transfers(engine: str) -> None:
    cluster = pair(2, 2)
    events = events_with(SlowTransfer(10.0, 50.0, 200.0, engine), cluster=cluster)

    later = [e for e in events.requests if 10 * SECOND < e.request.arrived_ns < 20 * SECOND]
    through = [e for e in later if engine in (e.prefill_engine, e.decode_engine)]
    waits = [((e.first_token_ns or 0) - e.request.arrived_ns) / SECOND for e in through]
    assert min(waits) > 0.9
    assert wait_seconds(events, 0, 10) < 0.3


def test_failing_links_of_one_engine_leave_the_others_prompts_alone() -> None:
    fault = FailingTransfer(0.0, 60.0, 1.0, "decode-1")
    events = events_with(fault, cluster=pair(1, 2))

    computed = {
        name: sum(step.computed_tokens for step in events.steps(name))
        for name in ("decode-0", "decode-1")
    }
    prompts = len(events.requests) // 2
    # The last token of an arriving prompt is recomputed.
    assert computed["decode-0"] <= prompts + 1
    assert computed["decode-1"] >= 1500 * (prompts - 1)


def test_a_fault_of_an_unknown_target_is_refused() -> None:
    for fault in (Crash(1.0, "decode-9"), Throttled(1.0, 1.0, "GPU-none", 0.5)):
        with pytest.raises(SpecError, match="a fault of"):
            events_with(fault)


def test_the_frontend_reports_users_requests() -> None:
    simulation = Simulation(
        pair(), StoppedLoad(Constant(MIX), 20), reporting=Reporting(page_seconds=None), seed=5
    )
    events = listen(simulation, 60)
    (model,) = parse_front_page(simulation.request_flow.front.render().encode(), 1).models

    waits = model.serving.time_to_first_token
    assert waits is not None
    assert waits.total == len(events.requests) == model.serving.totals[Total.ENDED_SUCCESS]
    assert waits.sum / waits.total == pytest.approx(wait_seconds(events, 0, 20))
