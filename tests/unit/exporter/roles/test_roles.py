"""Markers to roles: the projects' own manifests, and what must hold for any input."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from disagg_exporter.model import Role
from disagg_exporter.roles.evidence.types import Confidence, Markers, Peers, Traffic
from disagg_exporter.roles.judge import explain

CASES = Path(__file__).parents[3] / "data" / "roles" / "cases.yaml"


def _cases() -> list[Any]:
    return [
        pytest.param(case, id=case["id"]) for case in yaml.load(CASES.read_text(), yaml.CSafeLoader)
    ]


def _markers(case: dict[str, Any]) -> Markers:
    return Markers(
        argv=tuple(case.get("argv", ())),
        env=case.get("env", {}),
        labels=case.get("labels", {}),
        page=tuple(case.get("page", ())),
        name=case.get("name", ""),
        peers=Peers(prefill="prefill" in case.get("peers", ())),
    )


@pytest.mark.parametrize("case", _cases())
def test_a_case_from_a_projects_manifest_is_right_and_not_overconfident(
    case: dict[str, Any],
) -> None:
    verdict = explain(_markers(case))

    lowest, highest = Confidence(case["min"]), Confidence(case["max"])
    assert verdict.answer == case["role"], verdict
    assert lowest.rank <= verdict.confidence.rank <= highest.rank, verdict


def test_the_cases_are_many_and_their_names_differ() -> None:
    cases = yaml.load(CASES.read_text(), yaml.CSafeLoader)

    assert len(cases) >= 60
    assert len({case["id"] for case in cases}) == len(cases)


NIXL = '{"kv_connector": "NixlConnector", "kv_role": "kv_producer"}'
ESCAPED = NIXL.replace('"', '\\"')
FLAG = "--kv-transfer-config"
SERVE = ["vllm", "serve", "m"]
LINE = f"vllm serve m {FLAG} '{NIXL}'"
SPELLINGS = {
    "one word": [*SERVE, FLAG, NIXL],
    "equals": [*SERVE, f"{FLAG}={NIXL}"],
    "underscores": [*SERVE, "--kv_transfer_config", NIXL],
    "quotes left over": [*SERVE, FLAG, f"'{NIXL}'"],
    "escaped quotes": [*SERVE, FLAG, ESCAPED],
    "json in json": [*SERVE, FLAG, json.dumps(NIXL)],
    "python's quotes": [*SERVE, FLAG, NIXL.replace('"', "'")],
    "quotes eaten by a shell": ["sh", "-c", f"vllm serve m {FLAG} {NIXL}"],
    "flag and value as one argument": [*SERVE, f"{FLAG} '{NIXL}'"],
    "one string": [LINE],
    "shell": ["/bin/bash", "-lc", f"exec {LINE} 2>&1 | tee x"],
    "shell with options": ["bash", "-euo", "pipefail", "-c", LINE],
    "eval": ["bash", "-c", f"eval \"vllm serve m {FLAG} '{ESCAPED}' \""],
    "script's arguments": ["sh", "-c", 'exec vllm serve m "$@"', "sh", FLAG, NIXL],
    "numactl": ["numactl", "--cpunodebind=0", "-m", "0", *SERVE, FLAG, NIXL],
    "mpirun": ["mpirun", "-n", "2", *SERVE, FLAG, NIXL],
    "ray": ["ray", "job", "submit", "--", *SERVE, FLAG, NIXL],
    "module": ["python3.12", "-u", "-m", "vllm.entrypoints.openai.api_server", FLAG, NIXL],
    "script": ["/usr/bin/python3", "/usr/local/bin/vllm", "serve", FLAG, NIXL],
    "dotted": [*SERVE, f"{FLAG}.kv_role", "kv_producer"],
    "arguments only": ["--model", "m", FLAG, NIXL],
    "the last of two": [*SERVE, FLAG, '{"kv_role":"kv_consumer"}', FLAG, NIXL],
    "comment and line ends": ["sh", "-c", f"# don't\nvllm serve m \\\n  {FLAG} '{NIXL}'"],
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_every_spelling_of_the_kv_role_is_read(spelling: str) -> None:
    verdict = explain(Markers(argv=tuple(SPELLINGS[spelling])))

    assert (verdict.answer, verdict.confidence) == ("prefill", Confidence.HIGH)


def test_conflicting_markers_lower_the_confidence_and_are_all_listed() -> None:
    argv = ("python", "-m", "sglang.launch_server", "--disaggregation-mode", "decode")
    alone = explain(Markers(argv=argv))
    against = explain(Markers(argv=argv, labels={"llm-d.ai/role": "prefill"}))

    assert against.confidence.rank < alone.confidence.rank
    assert {item.role for item in against.evidence} == {"prefill", "decode"}


def test_an_explicit_role_is_certain() -> None:
    assert explain(Markers(env={"DISAGG_NODE_ROLE": "decode"})).confidence is Confidence.CERTAIN


def test_decode_by_label_becomes_decode_with_a_prefill_peer_or_with_traffic() -> None:
    labels = {"llm-d.ai/role": "decode"}
    decoding = Traffic(
        finished_requests=500, computed_tokens=10, external_tokens=1e6, generation_tokens=1e5
    )

    assert explain(Markers(labels=labels)).answer == "unknown"
    assert explain(Markers(labels=labels, peers=Peers(prefill=True))).answer == "decode"
    assert explain(Markers(labels=labels, traffic=decoding)).answer == "decode"


def test_few_requests_are_no_evidence() -> None:
    few = Traffic(
        finished_requests=3, computed_tokens=10, external_tokens=1e6, generation_tokens=1e5
    )

    assert explain(Markers(traffic=few)).answer == "unknown"


def test_a_role_that_changes_at_run_time_is_followed() -> None:
    before = explain(Markers(page=('sglang:num_running_reqs{engine_type="prefill"} 1',)))
    after = explain(Markers(page=('sglang:num_running_reqs{engine_type="decode"} 1',)))

    assert (before.answer, after.answer) == ("prefill", "decode")


SECRET = "hunter2-prefill-9f8e7d"


def test_no_raw_value_gets_into_the_evidence() -> None:
    """Values may be secrets: only role words that we know are repeated."""
    markers = Markers(
        argv=("vllm", "serve", SECRET, "--api-key", SECRET, "--kv-transfer-config", f"{{{SECRET}"),
        env={"HOSTNAME": SECRET, "DYN_COMPONENT": SECRET, "ROLE": SECRET, "HF_TOKEN": SECRET},
        labels={"app": SECRET, f"{SECRET}/role": "prefill", "role-name": SECRET, "model": SECRET},
        page=(
            f'vllm:x{{pod="{SECRET}"}} 1',
            f'dynamo_component_x{{dynamo_component="{SECRET}"}} 1',
        ),
        name=SECRET,
    )

    assert "hunter2" not in repr(explain(markers))


@pytest.mark.parametrize(
    "markers",
    [
        Markers(argv=("sh", "-c", "vllm serve --kv-transfer-config '{" + "[" * 300_000)),
        Markers(argv=("sh", "-c", "vllm serve a;" * 50_000), env={"VLLM_ARGS": "--a b " * 50_000}),
        Markers(argv=("vllm", "serve", *("$A",) * 9000), env={"A": "--a b " * 50_000}),
        Markers(argv=("--kv-transfer-config", '{"kv_connector_extra_config":' * 50_000)),
        Markers(argv=("--a",) * 500_000),
        Markers(argv=("proxy" * 6500,) * 4),
        Markers(page=("a" * 4000 + "{" + "b" * 90 + "} 1",) * 100_000),
        Markers(page=("vllm:x{" + 'a="' * 1300 + "} 1",) * 20_000),
        Markers(labels={f"x{at}/role": "prefill" for at in range(100_000)}),
        Markers(name="prefill" * 1_000_000, env={"HOSTNAME": "x" * 10_000_000}),
    ],
    ids=[
        "quotes",
        "commands",
        "variables",
        "nesting",
        "words",
        "a name of a program",
        "page",
        "labels in a line",
        "labels",
        "names",
    ],
)
def test_hostile_markers_are_parsed_cheaply(markers: Markers) -> None:
    start = time.process_time()
    verdict = explain(markers)

    assert len(verdict.evidence) < 100
    assert time.process_time() - start < 2


_WORDS = st.sampled_from(
    (
        *("prefill", "decode", "encode", "both", "kv_producer", "kv_both", "agg", "null", "router"),
        *("worker", "sender", "CONTEXT", "gen0", "'prefill'", "{}", "[", ";", "&", "$X", "eval"),
        *("vllm", "serve", "sh", "-c", "python", "-m", "dynamo.vllm", "sglang.launch_server"),
        *("trtllm-serve", "disaggregated", '{"kv_role":"kv_consumer"}', "--role", "--server_role"),
        *("--disaggregation-mode", "--kv-transfer-config", "--kv-transfer-config.kv_role="),
        *("--encoder-only", "--is-prefill-worker"),
    )
)
_TEXTS = _WORDS | st.text(max_size=20)
_ENV_NAMES = st.sampled_from(
    (
        *("ROLE_NAME", "DYN_COMPONENT", "DYN_VLLM_DISAGGREGATION_MODE", "LMCACHE_PD_ROLE", "ROLE"),
        *("TRTLLM_DISAGG_ROLE", "VLLM_ADDITIONAL_ARGS", "KV_ROLE", "KV_TRANSFER_CONFIG"),
        *("HOSTNAME", "DYN_VLLM_IS_PREFILL_WORKER"),
    )
)
_LABEL_NAMES = st.sampled_from(
    (
        *("llm-d.ai/role", "role", "role-name", "app", "model", "x/component"),
        *("app.kubernetes.io/component", "modelserving.volcano.sh/role"),
        *("nvidia.com/dynamo-component", "nvidia.com/dynamo-component-type"),
    )
)
_LINES = st.builds(
    'vllm:{}{{engine_type="{}",pod="{}",dynamo_component="{}"}} {}'.format,
    st.sampled_from(["x", "generation_tokens_total", "num_requests_kv_fetch_by_stage"]),
    *(_TEXTS,) * 4,
)
_MARKERS = st.builds(
    Markers,
    argv=st.lists(_TEXTS, max_size=8).map(tuple),
    env=st.dictionaries(_ENV_NAMES | st.text(max_size=5), _TEXTS, max_size=4),
    labels=st.dictionaries(_LABEL_NAMES | st.text(max_size=5), _TEXTS, max_size=4),
    page=st.lists(_LINES | st.text(max_size=40), max_size=4).map(tuple),
    name=_TEXTS,
    peers=st.builds(Peers, st.booleans(), st.booleans()),
)
_SETTINGS = settings(max_examples=60, deadline=None)


@_SETTINGS
@given(_MARKERS)
def test_no_markers_raise_or_give_certainty(markers: Markers) -> None:
    verdict = explain(markers)

    assert verdict.confidence is not Confidence.CERTAIN
    assert (verdict.confidence is Confidence.NONE) == (verdict.role is Role.UNKNOWN)
    assert verdict.is_engine == (verdict.role is not Role.NONE)


_SCRIPTS = st.lists(
    st.sampled_from(
        (
            *("vllm serve m ", "sh -c ", "eval ", "--kv-transfer-config ", '{"kv_role":', "$A"),
            *("'", '"', "\\", "\n", ";", "&&", " #", "{", "}", "[", "=", "${B:-", "$(", ")", "--"),
            *("kv_producer", "A=", "export ", " ", "x", "\u2028", "\0"),
        )
    ),
    max_size=25,
).map("".join)


@_SETTINGS
@given(_SCRIPTS, _SCRIPTS)
def test_no_script_however_broken_raises(script: str, variable: str) -> None:
    env = {"A": variable, "VLLM_ADDITIONAL_ARGS": variable, "KV_TRANSFER_CONFIG": script}

    explain(Markers(argv=("bash", "-c", script, "x", variable), env=env))
    explain(Markers(argv=(script, variable), env=env))


@_SETTINGS
@given(_MARKERS, st.randoms(use_true_random=False))
def test_the_order_of_markers_does_not_matter(markers: Markers, random: Random) -> None:
    page, env, labels = list(markers.page), list(markers.env.items()), list(markers.labels.items())
    for part in (page, env, labels):
        random.shuffle(part)
    shuffled = replace(markers, page=tuple(page), env=dict(env), labels=dict(labels))

    assert explain(shuffled) == explain(markers)


@_SETTINGS
@given(_MARKERS, st.dictionaries(st.text("QZ", min_size=1, max_size=5), _TEXTS, max_size=3))
def test_unknown_keys_change_nothing(markers: Markers, extra: dict[str, str]) -> None:
    more = replace(markers, env={**extra, **markers.env}, labels={**extra, **markers.labels})

    assert explain(more) == explain(markers)


@_SETTINGS
@given(st.lists(_LINES, max_size=6).map(tuple), _TEXTS)
def test_a_page_and_a_name_alone_are_never_certain(page: tuple[str, ...], name: str) -> None:
    assert explain(Markers(page=page, name=name)).confidence.rank <= Confidence.HIGH.rank
    assert explain(Markers(name=name)).confidence.rank <= Confidence.LOW.rank
