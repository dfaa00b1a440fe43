from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagg_cluster.planner.diagnose.verdict.values import (
    Alternative,
    Cause,
    EngineKey,
    EngineParts,
    ModelDiagnosis,
    TtftPart,
)
from disagg_cluster.planner.diagnose.words.diagnosis_text import diagnoses_text
from disagg_cluster.planner.diagnose.words.diagnosis_values import diagnosis_value
from disagg_cluster.planner.diagnose.words.ttft_bars import LETTERS, ttft_bars
from disagg_cluster.planner.diagnose.words.vocabulary import (
    CAUSES,
    PARTS,
    duration_words,
    whose_words,
)
from disagg_exporter.model import Role
from support.diagnosed import CLEAN, DEMAND, FOUND, SICK, SLOW_GPU, UNDECIDED, WELL
from support.diagnosed import PARTS as ENGINES

FOUND_TEXT = """\
model llama, namespace search, cluster east: 2 bottlenecks
1. slow GPU: prefill engine prefill-1 on gpu-7
   adds 0.412 s to the mean time to first token, 0.83 s to that of this engine;
   confidence 97%, since 05:52 UTC
   * steps take 2.03 times what the same work took before; peers take 1.01 times
   * its clock is at 0.98 GHz, its peers' at 1.98
   do: Send prefill-1 a third of the prompts. (route_away); would save 0.39 s
   more: docs/causes/slow_gpu.md
2. demand above what the pool can serve: the decode pool
   adds 50 ms to the mean time to first token; confidence 60%, since 05:40 UTC
   do: Let each decode engine run more requests. (set_max_num_seqs 384)
   more: docs/causes/demand_above_capacity.md
  not known here:
    * how long requests wait in the router: no frontend is read

Mean time to first token by part, and what was expected where that is less
(q queue, p prefill, k KV transfer, d first decode step):
  prefill-1 gpu-7           prefill    1.06 s  qqqqqqqqqqqqqqqqqqqqppppppppppppp
                            expected   0.25 s  qqpppppp
  prefill-0 gpu-6           prefill    0.26 s  qqpppppp
  decode-0 gpu-8            decode      50 ms  kd"""
UNDECIDED_TEXT = """\
model qwen, cluster east: undecided
  First tokens take 0.4 s longer than half an hour ago, and nothing shows why.
  missing:
    * the parts of the first token: no engine tells them"""
CLEAN_TEXT = """\
model llama, namespace search, cluster east: no bottleneck
  looked at: queue, prefill, KV transfer and first decode step of 1 prefill
  engine and 1 decode engine"""


def test_models_with_bottlenecks_come_first_and_those_without_last() -> None:
    told = diagnoses_text([CLEAN, UNDECIDED, FOUND])

    assert told == "\n\n".join([FOUND_TEXT, UNDECIDED_TEXT, CLEAN_TEXT])


def test_a_suspected_cause_is_shown_without_an_action() -> None:
    watched = replace(CLEAN, suspects=(SLOW_GPU,))

    told, value = diagnoses_text([watched]), json.loads(json.dumps(diagnosis_value(watched)))

    assert "no bottleneck" in told.splitlines()[0]
    assert (
        "suspected, not beyond chance yet: slow GPU: prefill engine prefill-1 on gpu-7 (steps take "
        "2.03 times what the same work took before; peers take 1.01 times)"
    ) in " ".join(told.split())
    assert "do:" not in told
    assert (value["outcome"], value["findings"]) == ("no_bottleneck", [])
    assert [each["cause"] for each in value["suspects"]] == ["slow_gpu"]


def test_the_alternative_of_a_finding_is_shown_before_its_action() -> None:
    other = Alternative(Cause.STRANGER, "no metric shows what other processes take of its GPUs")
    either = replace(FOUND, findings=(replace(SLOW_GPU, alternative=other),))

    told, (value,) = diagnoses_text([either]), _findings(either)

    lines = told.splitlines()
    said = next(number for number, line in enumerate(lines) if line.startswith("   or: "))
    assert (
        " ".join(lines[said : said + 2]).split()
        == (
            f"or: {CAUSES[Cause.STRANGER]} (no metric shows what other processes take of its GPUs)"
        ).split()
    )
    assert lines[said + 2].startswith("   do: ")
    assert value["alternative"] == {"cause": "stranger_on_gpu", "text": other.text}
    assert [each["alternative"] for each in _findings(FOUND)] == [None, None]


def _findings(diagnosis: ModelDiagnosis) -> list[dict[str, object]]:
    told = json.loads(json.dumps(diagnosis_value(diagnosis), allow_nan=False))
    findings: list[dict[str, object]] = told["findings"]
    return findings


def test_a_single_model_without_bottleneck_is_shown_with_its_bars() -> None:
    told = diagnoses_text([CLEAN])

    assert told.startswith(CLEAN_TEXT)
    assert "  decode-0 gpu-8            decode      50 ms  kkkkdd" in told


def test_the_bars_of_many_engines_are_limited_and_start_with_those_of_findings() -> None:
    crowd = tuple(replace(ENGINES[0], engine=EngineKey("n", f"e{n}")) for n in range(1000))
    diagnosis = replace(FOUND, parts=(*crowd, ENGINES[1]))

    lines = list(ttft_bars(diagnosis.parts, [SICK]))

    assert lines[3].split()[0] == SICK.engine
    assert len(lines) == 3 + 12 + 1 + 1
    assert lines[-1] == "  and 989 more engines, less far off (--json has them all)"


_SECONDS = st.floats(0, 1e4)


@given(
    parts=st.lists(
        st.dictionaries(st.sampled_from(TtftPart), _SECONDS, min_size=1), min_size=1, max_size=20
    ),
    name=st.text("abcü-", min_size=1, max_size=60),
)
def test_bars_fit_80_columns_with_lengths_in_proportion_to_their_sums(
    parts: list[dict[TtftPart, float]], name: str
) -> None:
    engines = [
        EngineParts(EngineKey("node", f"{name}{n}"), Role.PREFILL, tuple(told.items()))
        for n, told in enumerate(parts)
    ]

    lines = list(ttft_bars(engines, most=len(engines)))
    bars = [line[47:] for line in lines[3:]]

    assert max(map(len, lines)) <= 80
    longest = max(sum(told.values()) for told in parts)
    expected = sorted(round(33 * sum(told.values()) / max(longest, 1e-6)) for told in parts)
    found = sorted(map(len, bars))
    assert all(abs(one - other) <= 1 for one, other in zip(found, expected, strict=True))


def test_every_cause_and_part_has_a_display_name() -> None:
    assert set(CAUSES) == set(Cause)
    assert set(PARTS) == set(LETTERS) == set(TtftPart)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.0, "0 ms"),
        (0.0003, "0.3 ms"),
        (0.042, "42 ms"),
        (0.0999, "100 ms"),
        (0.00996, "10 ms"),
        (1.2345, "1.23 s"),
        (4321.0, "4,321 s"),
    ],
)
def test_a_duration_is_shown_in_a_suitable_unit(seconds: float, words: str) -> None:
    assert duration_words(seconds) == words


def test_at_most_four_engines_are_named_in_the_text() -> None:
    engines = [EngineKey("n", f"e{number}") for number in range(6)]

    assert whose_words(Role.DECODE, engines).endswith("e3 on n and 2 more")
    assert whose_words(Role.PREFILL, [SICK, WELL]) == (
        "prefill engines prefill-1 on gpu-7 and prefill-0 on gpu-6"
    )


@pytest.mark.parametrize("cause", [Cause.LATENCY_FLOOR, Cause.ROUTER_LIMIT])
def test_a_wait_before_the_engines_is_not_shown_as_a_pools(cause: Cause) -> None:
    finding = replace(DEMAND, cause=cause, role=Role.PREFILL, engines=())

    text = diagnoses_text([replace(FOUND, findings=(finding,), suspects=(finding,))])

    assert f"1. {CAUSES[cause]}: before the engines\n" in text
    assert "prefill pool" not in text


def test_json_has_the_contents_of_the_text_with_units_in_its_keys() -> None:
    told = json.loads(json.dumps(diagnosis_value(FOUND), allow_nan=False))

    slow, demand = told["findings"]
    assert (told["outcome"], told["undecided"], told["model_name"]) == ("found", None, "llama")
    assert (slow["cause"], slow["engines"]) == (
        "slow_gpu",
        [{"node": "gpu-7", "engine": "prefill-1"}],
    )
    assert slow["ttft_cost_seconds"] == SLOW_GPU.ttft_cost_seconds
    assert slow["since"] == "2025-11-23T05:52:00+00:00"
    assert slow["action"]["kind"] == "route_away"
    assert [each["unit"] for each in slow["evidence"]] == ["ratio", "hertz"]
    assert (demand["engines"], demand["action"]["value"]) == ([], DEMAND.remedy.value)
    assert told["ttft_parts"][1]["observed_seconds"] == {"queue": 0.64, "prefill": 0.42}


def test_json_says_whether_an_undecided_model_lacks_evidence() -> None:
    assert diagnosis_value(UNDECIDED)["undecided"] == "missing_evidence"
    assert diagnosis_value(replace(UNDECIDED, missing=()))["undecided"] == "unexplained"
    assert diagnosis_value(CLEAN)["undecided"] is None


def test_the_router_wait_is_shown_first_and_for_all_requests() -> None:
    router = EngineParts(None, Role.PREFILL, ((TtftPart.ROUTER, 0.2),), ((TtftPart.ROUTER, 0.1),))

    lines = list(ttft_bars((*ENGINES, router), [SICK]))

    assert lines[3].startswith("  all requests                          0.2 s  r")
    assert lines[4].startswith("                            expected    0.1 s  r")
    assert lines[5].split()[0] == SICK.engine


def test_names_from_a_foreign_prometheus_do_not_command_the_terminal() -> None:
    sick = EngineKey("gpu\x1b[2J", "prefill\n\x07")
    finding = replace(SLOW_GPU, engines=(sick,))
    parts = tuple(replace(each, engine=sick) for each in FOUND.parts if each.engine == SICK)
    text = diagnoses_text([replace(FOUND, findings=(finding,), parts=parts)])

    assert text.replace("\n", "").isprintable()
    assert r"prefill\n\x07 gpu\x1b[2J" in text
