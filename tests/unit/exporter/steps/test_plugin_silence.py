"""Why an engine reports no steps: each cause has its own remedy, and a sound engine none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from disagg_exporter.inside_engine.disagg_steps import wire
from disagg_exporter.steps.plugin_silence import SilenceFacts, explain_silence

TALKING = SilenceFacts(
    seconds_since_ready=60.0,
    connected=True,
    hello_flags=0,
    records_seen=True,
    vllm_plugins=None,
    tokens_advancing=True,
)
NEVER_CAME = replace(TALKING, connected=False, hello_flags=None, records_seen=False)


@pytest.mark.parametrize(
    "facts",
    [
        TALKING,
        replace(TALKING, records_seen=False, tokens_advancing=False),
        replace(TALKING, records_seen=False, tokens_advancing=None),
        replace(TALKING, vllm_plugins="other", hello_flags=wire.OVERLAPPED),
        replace(NEVER_CAME, seconds_since_ready=9.9),
    ],
    ids=["steps come", "no work", "no page", "connected all the same", "just started"],
)
def test_an_engine_without_a_fault_has_no_explanation(facts: SilenceFacts) -> None:
    assert explain_silence(facts) is None


@pytest.mark.parametrize(
    ("facts", "way_out"),
    [
        (replace(TALKING, hello_flags=wire.NO_DETAILS), "--enable-logging-iteration-details"),
        (replace(NEVER_CAME, vllm_plugins="lora,other"), "add disagg_steps to it"),
        (replace(NEVER_CAME, vllm_plugins=""), "add disagg_steps to it"),
        (replace(NEVER_CAME, vllm_plugins="other, disagg_steps"), "no spaces"),
        (replace(NEVER_CAME, vllm_plugins="other,disagg_steps"), "PYTHONPATH"),
        (NEVER_CAME, "PYTHONPATH"),
        (replace(NEVER_CAME, refused=3), "a session of its own"),
        (replace(TALKING, connected=False), "tries again every second"),
        (replace(TALKING, records_seen=False), "a second API server"),
        (replace(TALKING, records_seen=False, bad_messages=3), "not understood"),
    ],
)
def test_each_cause_is_explained_with_its_remedy(facts: SilenceFacts, way_out: str) -> None:
    explanation = explain_silence(facts)

    assert explanation is not None
    assert way_out in explanation


def test_missing_details_are_reported_without_a_grace_period() -> None:
    """The hello itself reports it: no later message can change it."""
    early = replace(TALKING, seconds_since_ready=0.0, hello_flags=wire.NO_DETAILS)

    assert explain_silence(early) is not None


def test_the_grace_period_is_set_by_the_caller() -> None:
    assert explain_silence(replace(NEVER_CAME, seconds_since_ready=9.9), grace_seconds=5.0)
