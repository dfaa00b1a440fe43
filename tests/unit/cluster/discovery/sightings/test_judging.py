"""What found engines are for, beside one another and over time."""

from __future__ import annotations

from itertools import pairwise

from disagg_cluster.discovery.sightings.judging import TRAFFIC_SECONDS, Case, Judge
from disagg_cluster.telemetry.known_peer import KnownPeer
from disagg_exporter.model import Role
from disagg_exporter.roles.evidence.types import Confidence, Markers

BOTH = Markers(argv=("vllm", "serve", "m", "--kv-transfer-config", '{"kv_role": "kv_both"}'))
PRODUCER = Markers(argv=("vllm", "serve", "m", "--kv-transfer-config", '{"kv_role":"kv_producer"}'))
MAYBE_DECODE = Markers(argv=BOTH.argv, labels={"llm-d.ai/role": "decode"})


def traffic(computed: float, external: float, made: float, requests: float) -> tuple[str, ...]:
    """The lines of a vLLM page that count."""
    by = "vllm:prompt_tokens_by_source_total"
    return (
        f'{by}{{source="local_compute"}} {computed}',
        f'{by}{{source="external_kv_transfer"}} {external}',
        f"vllm:generation_tokens_total {made}",
        f"vllm:request_success_total {requests}",
    )


def role(judge: Judge, *cases: Case, at: float = 0.0, peers: tuple[KnownPeer, ...] = ()) -> Role:
    return judge.judge(cases, peers, at)[cases[0].name].role


def test_kv_both_is_unknown_until_traffic_tells() -> None:
    judge = Judge()

    assert role(judge, Case("e", BOTH)) is Role.UNKNOWN
    assert role(judge, Case("e", BOTH, traffic(0, 9000, 9000, 100))) is Role.DECODE


def test_traffic_of_late_overrules_that_of_long_ago() -> None:
    """An engine that changes its role is followed within a window, however much it did before."""
    judge, was_decode = Judge(), (0, 900_000, 900_000, 10_000)
    assert role(judge, Case("e", BOTH, traffic(*was_decode))) is Role.DECODE

    now = traffic(50_000, 900_000, 900_050, 10_050)
    assert role(judge, Case("e", BOTH, now), at=TRAFFIC_SECONDS / 2) is Role.PREFILL


def test_too_little_of_late_leaves_the_role_as_it_was() -> None:
    judge = Judge()
    role(judge, Case("e", BOTH, traffic(0, 9000, 9000, 100)))

    assert role(judge, Case("e", BOTH, traffic(9, 9000, 9001, 101)), at=30.0) is Role.DECODE


def test_counters_that_begin_anew_are_not_taken_for_traffic() -> None:
    judge = Judge()
    role(judge, Case("e", BOTH, traffic(0, 9000, 9000, 100)))

    assert role(judge, Case("e", BOTH, traffic(0, 0, 0, 0)), at=9.0) is Role.UNKNOWN


def test_a_decode_label_counts_beside_a_prefill_engine_of_the_same_model() -> None:
    maybe = Case("e", MAYBE_DECODE, model_name="m")
    prefill = Case("p", PRODUCER, model_name="m")
    other = Case("p", PRODUCER, model_name="another")

    assert role(Judge(), maybe) is Role.UNKNOWN
    assert role(Judge(), maybe, other) is Role.UNKNOWN
    assert role(Judge(), maybe, prefill) is Role.DECODE
    assert role(Judge(), maybe, peers=(KnownPeer("m", Role.PREFILL),)) is Role.DECODE


def test_engines_of_unknown_models_are_nobodys_peers() -> None:
    assert role(Judge(), Case("e", MAYBE_DECODE), Case("p", PRODUCER)) is Role.UNKNOWN


def test_what_a_person_said_is_certain() -> None:
    [verdict] = Judge().judge([Case("e", PRODUCER, role=Role.DECODE)], (), 0.0).values()

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


def test_an_engine_that_can_switch_is_judged_by_what_it_does_not_by_its_flag() -> None:
    judge = Judge()
    verdict = judge.judge([Case("e", SWITCHES)], (), 0.0)["e"]
    assert (verdict.role, verdict.source) == (Role.UNKNOWN, "dynamic")

    [told] = judge.judge([Case("e", SWITCHES, sglang(100, 900_000))], (), 2.0).values()
    assert (told.role, told.source, told.confidence) == (
        Role.DECODE,
        "traffic",
        Confidence.MEDIUM,
    )


def test_a_switch_counts_once_it_lasts_and_a_rest_changes_nothing() -> None:
    judge, roles = Judge(), []
    computed, made = 100.0, 900_000.0
    for second in range(0, 120, 2):
        if 20 <= second < 80:
            computed += 10_000
        roles.append(role(judge, Case("e", SWITCHES, sglang(computed, made)), at=float(second)))

    assert set(roles) == {Role.DECODE, Role.PREFILL}
    assert [a is b for a, b in pairwise(roles)].count(False) == 1
    assert roles[25] is Role.PREFILL
    assert roles[-1] is Role.PREFILL
