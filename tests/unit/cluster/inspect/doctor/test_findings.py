"""The doctor's findings on a node."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from disagg_cluster.inspect.doctor.facts import Diagnosis, Level, NodeFacts, WorkerFacts
from disagg_cluster.inspect.doctor.findings import examine, next_step
from disagg_cluster.inspect.doctor.other_daemons import starts_daemon
from disagg_cluster.inspect.doctor.workers import read_workers
from disagg_cluster.inspect.views import EngineView
from disagg_exporter.http.tls_errors import TlsFault

ENGINE = EngineView(
    "vllm-8000",
    role="decode",
    kind="vllm",
    up=True,
    source="vllm",
    confidence="high",
    method="steps",
    split="model",
    residual_ratio=0.03,
    fitted_steps=900.0,
    gpus=("GPU-a",),
)
WELL = NodeFacts(
    "http://here", version="1.0", devices=8, engines=(ENGINE,), collectors={"nvml": True}
)


def of(level: Level, facts: NodeFacts) -> list[Diagnosis]:
    return [finding for finding in examine(facts) if finding.level is level]


def engine(**changes: Any) -> NodeFacts:
    return replace(WELL, engines=(replace(ENGINE, **changes),))


def test_a_healthy_node_has_no_next_step() -> None:
    assert {finding.level for finding in examine(WELL)} == {Level.FINE}
    assert next_step(examine(WELL)) is None


def test_a_worker_that_starts_need_not_report_steps_yet() -> None:
    starting = WorkerFacts("prefill-0", "starting")
    facts = replace(WELL, collectors={"steps:prefill-0": False}, workers=(starting,))

    assert of(Level.WRONG, facts) == []


def test_workers_left_by_a_daemon_are_listed_with_a_remedy() -> None:
    facts = NodeFacts("http://here", left_workers=("prefill-0", "decode-0"), file="node.yaml")
    told = "\n".join(finding.what for finding in examine(facts))

    assert "prefill-0, decode-0 go on without the daemon" in told
    assert "no engine" not in told
    step = next_step(examine(facts))
    assert step is not None
    assert step.step == "start the daemon: disagg-node start -c node.yaml"


def test_one_worker_left_by_a_daemon_is_told_of_in_the_singular() -> None:
    facts = NodeFacts("http://here", left_workers=("decode-0",))

    assert "decode-0 goes on without the daemon that launched it: it is not restarted" in "\n".join(
        finding.what for finding in examine(facts)
    )


@pytest.mark.parametrize(
    ("facts", "word"),
    [
        (replace(WELL, version=None), "nothing is counted"),
        (engine(gpus=()), "no time can be attributed to it"),
        (replace(WELL, collectors={"nvml": False}), "GPUs cannot all be read"),
        (replace(WELL, collectors={"dcgm": False}), "GPUs cannot all be read from dcgm-exporter"),
        (replace(WELL, collectors={"discovery:processes": False}), "processes"),
        (replace(WELL, collectors={"discovery:pods": False}), "pods are not known whole"),
        (replace(WELL, collectors={"discovery:dynamo": False}), "registrations"),
        (replace(WELL, collectors={"kube_api": False}), "API server"),
        (replace(WELL, collectors={"kubelet": False}), "which container holds which GPU"),
        (replace(WELL, collectors={"pod_steps": False}), "cannot report their steps"),
        (replace(WELL, collectors={"steps:prefill-0": False}), "steps of prefill-0"),
        (replace(WELL, collectors={"steps:attached": False}), "engines started by hand"),
        (replace(WELL, collectors={"fpm:dynamo-9090": False}), "steps of dynamo-9090"),
        (replace(WELL, collectors={"journal": False}), "journal"),
        (replace(WELL, collectors={"checkpoint": False}), "counters would begin at zero"),
        (replace(WELL, collectors={"learned": False}), "learn capacity and costs anew"),
        (replace(WELL, collectors={"log_rotation": False}), "logs grow"),
        (replace(WELL, collectors={"run_folder": False}), "may not find the engines"),
        (replace(WELL, collectors={"of tomorrow": False}), "of tomorrow fails"),
        (replace(WELL, lost=("no hostPID",)), "no hostPID"),
        (replace(WELL, kubelet_socket=True, grpc=False), "grpcio is not installed"),
        (replace(WELL, in_cluster=True, node_name=False), "NODE_NAME"),
        (engine(registered=False), "lost its registration"),
        (engine(up=False), "does not answer"),
    ],
)
def test_failures_are_reported_with_a_remedy(facts: NodeFacts, word: str) -> None:
    [finding] = of(Level.WRONG, facts)

    assert word in finding.what
    assert finding.step


@pytest.mark.parametrize(
    ("facts", "word", "step"),
    [
        (replace(WELL, engines=()), "no engine", "endpoints"),
        (replace(WELL, no_gpus="NVML does not start"), "NVML does not start", ""),
        (replace(WELL, simulated=True), "SIMULATED", ""),
        (
            engine(role="unknown", confidence="none"),
            "the role of vllm-8000 is unknown",
            "disagg-node/role",
        ),
        (engine(confidence="low"), "by a hint only (vllm)", "DISAGG_NODE_ROLE=decode"),
        (engine(method="page"), "device activity", "plugin"),
        (
            engine(method="page", share_confidence="low"),
            "another engine is on its GPUs",
            "plugin",
        ),
        (engine(method="page_cpu"), "CPU time", "plugin"),
        (engine(method="role"), "counts as decode", "plugin"),
        (engine(method="none"), "not measured", "plugin"),
        (
            engine(method="none", on_cpu=True),
            "not measured: it reports no steps, no GPU of it is read",
            "iteration-details; or let the daemon read its GPUs, or see its processes",
        ),
        (
            engine(method="none", kind="trtllm", on_cpu=True),
            "its processes are not known, or its page cannot be used",
            "let the daemon read its GPUs",
        ),
        (engine(method="engine_timers", kind="sglang"), "timers", ""),
        (engine(method="page", kind="sglang"), "inexact", "--enable-forward-pass-metrics"),
        (engine(method="page", kind="dynamo"), "inexact", "DYN_FORWARDPASS_METRIC_PORT"),
    ],
)
def test_possible_improvements_are_reported(facts: NodeFacts, word: str, step: str) -> None:
    [finding] = of(Level.WARN, facts)

    assert word in finding.what
    assert step in finding.step


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({}, "a cost model (error 3% over 900 samples)"),
        ({"split": "tokens"}, "divided by tokens until"),
        ({"split": "none"}, "measured step by step"),
        ({"lost_records": 7.0}, "7 records recovered"),
        ({"method": "fpm", "lost_records": 7.0}, "7 records lost and not restored"),
        ({"method": "fpm"}, "measured step by step"),
    ],
)
def test_an_engine_with_step_reports_is_exact(changes: dict[str, Any], word: str) -> None:
    assert of(Level.WARN, engine(**changes)) == []
    assert any(word in finding.what for finding in of(Level.FINE, engine(**changes)))


@pytest.mark.parametrize("fault", TlsFault)
def test_each_tls_fault_has_its_own_text_and_remedy(fault: TlsFault) -> None:
    [found] = of(Level.WRONG, engine(up=False, kind="vllm", tls_fault=fault.value))
    others = [
        of(Level.WRONG, engine(up=False, tls_fault=other.value))[0]
        for other in TlsFault
        if other is not fault
    ]

    assert found.step
    assert "--enable-metrics" not in found.step
    assert found.what not in [other.what for other in others]
    assert found.step not in [other.step for other in others]


def test_a_tls_fault_is_reported_completely() -> None:
    found = {
        fault: of(Level.WRONG, engine(up=False, tls_fault=fault.value))[0]
        for fault in (TlsFault.EXPIRED, TlsFault.UNTRUSTED, TlsFault.TLS_WANTED)
    }

    assert [(each.what, each.step) for each in found.values()] == [
        (
            "vllm-8000 is not read: its certificate has expired",
            "renew the certificate of vllm-8000",
        ),
        (
            "vllm-8000 is not read: its certificate is signed by an unknown authority",
            "name the authority that signs it: `ca_file:` under its own `tls:` in the node file, "
            "or `attach: tls:` for all",
        ),
        (
            "vllm-8000 is not read: it uses TLS, but its address begins with http://",
            "list its address as https:// under `attach: endpoints:`",
        ),
    ]


def test_no_fixed_role_is_advised_for_a_switching_engine() -> None:
    [found] = of(Level.WARN, engine(role="unknown", source="dynamic"))

    assert (found.what, found.step) == (
        "vllm-8000 can switch roles, and has done too little to show which it has",
        "",
    )


def test_an_engine_that_does_not_answer_is_to_be_looked_at_where_the_reason_is() -> None:
    """The log of one that somebody listed may not exist: nothing may listen at its address."""
    silent = engine(up=False)
    launched = replace(silent, workers=(WorkerFacts("vllm-8000", "ready"),))

    found = [of(Level.WRONG, facts)[0] for facts in (silent, launched)]
    assert ["with a page that can be read" in each.what for each in found] == [True, False]
    steps = [each.step for each in found]

    assert steps == [
        "the daemon's log says why (`vllm-8000: metrics page`); "
        "`curl http://HOST:PORT/metrics` shows what answers at its address",
        "disagg-node logs vllm-8000",
    ]


def test_only_sglang_is_reported_to_need_an_option_for_its_page() -> None:
    steps = {
        kind: of(Level.WRONG, engine(up=False, kind=kind))[0].step for kind in ("vllm", "sglang")
    }

    assert steps["sglang"] == f"{steps['vllm']}; SGLang needs --enable-metrics"


def test_an_unverified_engine_is_reported() -> None:
    [found] = of(Level.WARN, engine(verified="insecure"))

    assert found.what == "vllm-8000 is read over TLS, but not verified (`insecure: true`)"
    assert of(Level.WARN, engine(verified="pinned")) == []


def test_an_unknown_fault_of_a_newer_daemon_is_ignored() -> None:
    assert of(Level.WRONG, engine(tls_fault="of_tomorrow")) == []


def test_the_next_step_is_that_of_the_worst_finding_that_gains_most() -> None:
    worse = replace(engine(role="unknown", method="none"), collectors={"kubelet": False})

    best = next_step(examine(worse))
    assert best is not None
    assert "pod-resources" in best.step
    assert (next_step(examine(engine(role="unknown", method="none"))) or best).gain == 6


@pytest.mark.parametrize(
    "changes",
    [
        {"split": "tokens"},
        {"split": "unsure"},
        {"method": "page"},
        {"confidence": "low"},
        {"role": "unknown", "source": ""},
        {"gpus": ()},
        {"up": False},
        {"up": False, "tls_fault": "certificate_expired"},
        {"up": False, "tls_fault": "client_certificate_wanted"},
        {"verified": "insecure"},
        {"registered": False},
    ],
)
def test_a_step_for_one_engine_says_for_which(changes: dict[str, Any]) -> None:
    step = next_step(examine(engine(**changes)))

    assert step is not None
    assert "vllm-8000" in step.whole_step


def test_an_unmeasured_engine_has_no_accuracy() -> None:
    facts = replace(WELL, version=None)

    assert not any("step by step" in finding.what for finding in examine(facts))


def test_a_follower_needs_nothing_its_leader_provides() -> None:
    follower = {"method": "follower", "follows": "10.0.0.1:29501", "split": "none"}
    facts = engine(**follower)

    fine = [finding.what for finding in of(Level.FINE, facts)]
    assert "vllm-8000 is a follower of 10.0.0.1:29501, which answers for it" in fine
    assert of(Level.WRONG, facts) == []
    [inexact] = of(Level.WARN, facts)
    assert (inexact.what, inexact.step) == (
        "vllm-8000: inexact: a follower, its devices' activity, by its leader's shares or its role",
        "",
    )


@pytest.mark.parametrize(
    ("role", "text"),
    [
        ("prefill", "the activity of its devices, which would be prefill, is not read"),
        ("decode", "the activity of its devices, which would be decode, is not read"),
        ("mixed", "its role, mixed, does not say which phase"),
        ("encode", "its role, encode, does not say which phase"),
    ],
)
def test_a_followers_undivided_time_is_explained_by_its_role(role: str, text: str) -> None:
    [found] = of(Level.WARN, engine(method="none", follows="", role=role))

    assert (found.what, found.step) == (
        f"vllm-8000: not divided: a follower reports nothing, and {text}",
        "",
    )


def test_the_command_that_adds_the_plugin_is_shown() -> None:
    [by_hand] = of(Level.WARN, engine(method="page"))
    [in_pod] = of(Level.WARN, engine(method="page", pod="llama-0"))

    assert by_hand.step == (
        'start it with our plugin: `eval "$(disagg-node plugin env)"` in its shell, then its own '
        "command with --enable-logging-iteration-details"
    )
    assert in_pod.step == (
        'start it with our plugin: the annotation disagg-node/steps: "true" on its pod, and '
        "`disagg-node plugin copy` in an init container (docs/kubernetes-engines.md)"
    )


def test_engines_beyond_the_limit_are_reported() -> None:
    [found] = of(Level.WRONG, replace(WELL, left_out_engines=3))

    assert (found.what, found.step) == (
        "3 engines beyond the 64 that one daemon attaches to were found: "
        "they are neither shown nor measured",
        "list those that matter under `attach: endpoints:`, with `processes: false`",
    )


def test_a_follower_of_unknown_role_is_referred_to_its_leader() -> None:
    [_, undivided] = of(Level.WARN, engine(method="none", follows="", role="unknown"))
    assert undivided.what == (
        "vllm-8000: not divided: a follower reports nothing, and its role is unknown"
    )

    unknown = of(Level.WARN, engine(method="none", follows="", role="unknown"))
    assert "its traffic is reported by its leader only" in unknown[0].what
    assert "DISAGG_NODE_ROLE" in unknown[0].step


def worker(state: str, **more: Any) -> NodeFacts:
    facts = WorkerFacts("vllm-8000", state, **more)
    return replace(WELL, workers=(facts,), engines=(replace(ENGINE, up=False),))


def test_a_starting_worker_is_fine_and_shows_its_progress() -> None:
    facts = worker(
        "starting", state_seconds=40.0, left_seconds=560.0, last_lines=("Loading weights: 45 %",)
    )

    told = [finding.what for finding in examine(facts)]

    assert of(Level.WRONG, facts) == []
    assert (
        "vllm-8000 is starting for 40s, given up in 9m 20s; it printed last: Loading weights: 45 %"
        in told
    )


def test_a_given_up_worker_is_reported_with_cause_and_remedy() -> None:
    facts = worker("failed", restarts=5, cause="exit code 1", last_lines=("ValueError: no memory",))

    [finding] = of(Level.WRONG, facts)

    assert finding.what == (
        "vllm-8000 was given up after 5 restarts: exit code 1; it printed last: "
        "ValueError: no memory"
    )
    assert next_step(examine(facts)) == finding
    assert "disagg-node restart vllm-8000" in finding.step
    [finding] = of(Level.WRONG, worker("failed", restarts=1))
    assert finding.what.startswith("vllm-8000 was given up after 1 restart: ")


def test_a_crashed_worker_is_a_fault_and_a_paused_one_a_possible_improvement() -> None:
    waits = of(Level.WRONG, worker("backoff", cause="signal 9", left_seconds=3.0))
    [paused] = of(Level.WARN, replace(WELL, workers=(WorkerFacts("w", "ready", paused=True),)))

    assert [finding.what for finding in waits] == [
        "vllm-8000 has crashed: signal 9, next start in 3s"
    ]
    assert paused.step == "disagg-node resume w"


def test_a_worker_drained_by_hand_is_named_with_how_to_resume_it() -> None:
    [drained] = of(Level.WARN, replace(WELL, workers=(WorkerFacts("w", "ready", drained=True),)))

    assert drained.what.startswith("w is drained by hand: it gets no requests")
    assert drained.step == "disagg-node resume w"


def test_a_worker_without_a_process_has_no_role_finding() -> None:
    ended = replace(ENGINE, engine="w", up=False, source="", confidence="", gpus=())

    said = [each.what for each in examine(replace(WELL, engines=(ended,)))]

    assert not [what for what in said if what.startswith("w is decode")]


def test_two_daemons_on_one_host_are_named() -> None:
    [finding] = of(Level.WARN, replace(WELL, other_daemons=(4711,)))

    assert "another disagg-node runs on this host (pid 4711)" in finding.what


@pytest.mark.parametrize(
    ("argv", "starts"),
    [
        (("/usr/bin/python3", "/usr/bin/disagg-node", "start", "-c", "n.yaml"), True),
        (("python", "-m", "disagg_cluster.cli", "start"), True),
        (("python", "/venv/bin/disagg-node", "status"), False),
        (
            ("python", "/venv/bin/disagg-node", "container-init", "--", "disagg-node", "start"),
            False,
        ),
        (("timeout", "9", "/venv/bin/disagg-node", "start"), False),
        (("/opt/disagg-node", "start"), True),
        (("grep", "disagg-node"), False),
        ((), False),
    ],
)
def test_a_daemon_is_recognised_by_its_command_line(argv: tuple[str, ...], starts: bool) -> None:
    assert starts_daemon(argv) is starts


def test_workers_are_read_from_the_daemons_view() -> None:
    worker = {
        **{"state": "starting", "restarts": 2, "paused": False, "cause": "", "next_start": None},
        "drained": True,
        **{"since": "2026-11-23T10:00:00+00:00", "deadline": "2026-11-23T10:10:00+00:00"},
        "last_lines": ["x"],
    }
    engines = [{"engine": "w", "worker": worker}, {"engine": "found", "worker": None}]
    view = {"made_at": "2026-11-23T10:01:00+00:00", "engines": engines}

    assert read_workers(json.dumps(view).encode()) == (
        WorkerFacts("w", "starting", 2, False, 60.0, 540.0, "", ("x",), drained=True),
    )
    del worker["drained"]
    [of_an_older_daemon] = read_workers(json.dumps(view).encode())
    assert not of_an_older_daemon.drained
    assert read_workers(b"") == read_workers(b"[]") == read_workers(b'{"made_at": null}') == ()
