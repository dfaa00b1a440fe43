"""The roles of found engines, together with their peers and over time."""

from __future__ import annotations

from itertools import pairwise

from disagg_cluster.discovery.observations.role_resolver import (
    TRAFFIC_SECONDS,
    Candidate,
    RoleResolver,
)
from disagg_cluster.telemetry.engine_registry import KnownPeer
from disagg_exporter.model import Role
from disagg_exporter.roles.evidence.types import Confidence, Markers

BOTH = Markers(argv=("vllm", "serve", "m", "--kv-transfer-config", '{"kv_role": "kv_both"}'))
PRODUCER = Markers(argv=("vllm", "serve", "m", "--kv-transfer-config", '{"kv_role":"kv_producer"}'))
MAYBE_DECODE = Markers(argv=BOTH.argv, labels={"llm-d.ai/role": "decode"})


def traffic(computed: float, external: float, made: float, requests: float) -> tuple[str, ...]:
    """The relevant lines of a vLLM page."""
    by = "vllm:prompt_tokens_by_source_total"
    return (
        f'{by}{{source="local_compute"}} {computed}',
        f'{by}{{source="external_kv_transfer"}} {external}',
        f"vllm:generation_tokens_total {made}",
        f"vllm:request_success_total {requests}",
    )


def role(
    resolver: RoleResolver,
    *candidates: Candidate,
    at: float = 0.0,
    peers: tuple[KnownPeer, ...] = (),
) -> Role:
    return resolver.resolve(candidates, peers, at)[candidates[0].name].role


def test_kv_both_is_unknown_until_traffic_shows_the_role() -> None:
    resolver = RoleResolver()

    assert role(resolver, Candidate("e", BOTH)) is Role.UNKNOWN
    assert role(resolver, Candidate("e", BOTH, traffic(0, 9000, 9000, 100))) is Role.DECODE


def test_recent_traffic_overrides_old_traffic() -> None:
    """An engine that changes its role is followed within a window, however much it did before."""
    resolver, was_decode = RoleResolver(), (0, 900_000, 900_000, 10_000)
    assert role(resolver, Candidate("e", BOTH, traffic(*was_decode))) is Role.DECODE

    now = traffic(50_000, 900_000, 900_050, 10_050)
    assert role(resolver, Candidate("e", BOTH, now), at=TRAFFIC_SECONDS / 2) is Role.PREFILL


def test_too_little_recent_traffic_keeps_the_role() -> None:
    resolver = RoleResolver()
    role(resolver, Candidate("e", BOTH, traffic(0, 9000, 9000, 100)))

    assert role(resolver, Candidate("e", BOTH, traffic(9, 9000, 9001, 101)), at=30.0) is Role.DECODE


def test_reset_counters_are_not_taken_for_traffic() -> None:
    resolver = RoleResolver()
    role(resolver, Candidate("e", BOTH, traffic(0, 9000, 9000, 100)))

    assert role(resolver, Candidate("e", BOTH, traffic(0, 0, 0, 0)), at=9.0) is Role.UNKNOWN


def test_a_decode_label_counts_beside_a_prefill_engine_of_the_same_model() -> None:
    maybe = Candidate("e", MAYBE_DECODE, model_name="m")
    prefill = Candidate("p", PRODUCER, model_name="m")
    other = Candidate("p", PRODUCER, model_name="another")

    assert role(RoleResolver(), maybe) is Role.UNKNOWN
    assert role(RoleResolver(), maybe, other) is Role.UNKNOWN
    assert role(RoleResolver(), maybe, prefill) is Role.DECODE
    assert role(RoleResolver(), maybe, peers=(KnownPeer("m", Role.PREFILL),)) is Role.DECODE


def test_engines_of_unknown_models_have_no_peers() -> None:
    assert (
        role(RoleResolver(), Candidate("e", MAYBE_DECODE), Candidate("p", PRODUCER)) is Role.UNKNOWN
    )


def test_a_configured_role_is_certain() -> None:
    [verdict] = (
        RoleResolver().resolve([Candidate("e", PRODUCER, role=Role.DECODE)], (), 0.0).values()
    )

    assert (verdict.role, verdict.source, verdict.confidence) == (
        Role.DECODE,
        "config",
        Confidence.CERTAIN,
    )


SWITCHES = Markers(
    argv=(
        *("python", "-m", "sglang.launch_server", "--disaggregation-mode", "prefill"),
        "--enable-pd-role-switch",
    )
)


def sglang(computed: float, made: float) -> tuple[str, ...]:
    name = "sglang:realtime_tokens_total"
    return (f'{name}{{mode="prefill_compute"}} {computed}', f'{name}{{mode="decode"}} {made}')


def test_a_switching_engine_is_judged_by_traffic_not_by_its_flag() -> None:
    resolver = RoleResolver()
    verdict = resolver.resolve([Candidate("e", SWITCHES)], (), 0.0)["e"]
    assert (verdict.role, verdict.source) == (Role.UNKNOWN, "dynamic")

    [told] = resolver.resolve([Candidate("e", SWITCHES, sglang(100, 900_000))], (), 2.0).values()
    assert (told.role, told.source, told.confidence) == (
        Role.DECODE,
        "traffic",
        Confidence.MEDIUM,
    )


def test_a_switch_counts_once_it_lasts_and_idle_time_changes_nothing() -> None:
    resolver, roles = RoleResolver(), []
    computed, made = 100.0, 900_000.0
    for second in range(0, 120, 2):
        if 20 <= second < 80:
            computed += 10_000
        roles.append(
            role(resolver, Candidate("e", SWITCHES, sglang(computed, made)), at=float(second))
        )

    assert set(roles) == {Role.DECODE, Role.PREFILL}
    assert [a is b for a, b in pairwise(roles)].count(False) == 1
    assert roles[25] is Role.PREFILL
    assert roles[-1] is Role.PREFILL
