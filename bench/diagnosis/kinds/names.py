"""The kinds of scenarios by their names in the scenario file."""

from __future__ import annotations

from collections.abc import Mapping

from bench.diagnosis.kinds import clean_kinds, engine_kinds, flow_kinds, pair_kinds
from bench.diagnosis.kinds.drawing import Kind

KINDS: Mapping[str, Kind] = {
    "steady": clean_kinds.steady,
    "steady_large": clean_kinds.steady,
    "steady_mixed": clean_kinds.steady,
    "low_traffic": clean_kinds.steady,
    "nearly_full": clean_kinds.steady,
    "changing": clean_kinds.changing,
    "bursts": clean_kinds.bursts,
    "wide_lengths": clean_kinds.steady,
    "noisy_steps": clean_kinds.noisy_steps,
    "uneven": flow_kinds.favoured,
    "throttled": engine_kinds.throttled,
    "power_capped": engine_kinds.power_capped,
    "sick": engine_kinds.sick,
    "straggler": engine_kinds.straggler,
    "stranger": engine_kinds.stranger,
    "host_bound": engine_kinds.host_bound,
    "mixing": engine_kinds.mixing,
    "small_steps": engine_kinds.small_steps,
    "few_slots": engine_kinds.few_slots,
    "large_steps": engine_kinds.large_steps,
    "small_cache": engine_kinds.small_cache,
    "no_prefix_caching": engine_kinds.no_prefix_caching,
    "cold_start": engine_kinds.cold_start,
    "favoured": flow_kinds.favoured,
    "surge": flow_kinds.surge,
    "lost_engine": flow_kinds.lost_engine,
    "long_to_one": flow_kinds.long_to_one,
    "giants": flow_kinds.giants,
    "prefixes_lost": flow_kinds.prefixes_lost,
    "slow_link": flow_kinds.slow_link,
    "slow_links": flow_kinds.slow_links,
    "failing_link": flow_kinds.failing_link,
    "decode_slots": flow_kinds.decode_slots,
    "decode_cache": flow_kinds.decode_cache,
    "preallocation": flow_kinds.preallocation,
    "outgrown": flow_kinds.outgrown,
    "infeasible": flow_kinds.infeasible,
    "latency_floor": flow_kinds.latency_floor,
    "latency_floor_mixed": flow_kinds.latency_floor,
    "serial_router": flow_kinds.serial_router,
    "bounded_router": flow_kinds.bounded_router,
    "two_faults": pair_kinds.two_faults,
}
