"""How sure the phases' shares are is said by how they are found."""

from __future__ import annotations

import pytest

from disagg_exporter.attribution.pages.prefill_shares import PhaseShares
from disagg_exporter.model import (
    EngineAccount,
    Method,
    Role,
    ShareConfidence,
    Split,
    StepTotals,
)
from support.accounting import NodeAccounting

HIGH, MEDIUM, LOW, NONE = ShareConfidence


def account(method: Method, split: Split, *, mixed: int = 0, cut: bool = False) -> EngineAccount:
    return EngineAccount(
        "e",
        Role.MIXED,
        "m",
        "",
        0,
        method,
        {},
        {},
        StepTotals(steps=(1, 1, mixed, 0)),
        split=split,
        cut_prompts=cut,
    )


@pytest.mark.parametrize(
    ("told", "confidence"),
    [
        (account(Method.STEPS, Split.MODEL, mixed=9), HIGH),
        (account(Method.STEPS, Split.TOKENS, mixed=9), MEDIUM),
        (account(Method.STEPS, Split.UNSURE, mixed=9), MEDIUM),
        # An engine that never mixes teaches no model, and needs none.
        (account(Method.STEPS, Split.TOKENS), HIGH),
        (account(Method.FPM, Split.MODEL, mixed=9), HIGH),
        (account(Method.ENGINE_TIMERS, Split.NONE), MEDIUM),
        (account(Method.PAGE, Split.MODEL), MEDIUM),
        (account(Method.PAGE, Split.MODEL, cut=True), LOW),
        (account(Method.PAGE, Split.TOKENS), LOW),
        (account(Method.PAGE_CPU, Split.MODEL), LOW),
        (account(Method.FOLLOWER, Split.NONE), LOW),
        (account(Method.ROLE, Split.NONE), LOW),
        (account(Method.NONE, Split.NONE), NONE),
    ],
)
def test_confidence_follows_from_source_and_split(
    told: EngineAccount, confidence: ShareConfidence
) -> None:
    assert told.confidence is confidence


def test_chunked_prompts_of_a_window_lower_the_accounts_confidence() -> None:
    accounting = NodeAccounting()
    accounting.engine()
    accounting.use(Method.PAGE, 0)
    for cut in (False, True):
        accounting.window(
            float(cut), cut + 1.0, busy=0.5, split=Split.MODEL, cut_prompts=cut, running=1
        )
        (shown,) = accounting.ledger.engine_accounts(2_000_000_000)
        assert shown.confidence is (LOW if cut else MEDIUM)


def test_a_page_is_sure_of_no_activity_on_a_device_that_another_engine_shares() -> None:
    """All activity of the device counts as its own, so it takes half of its neighbour's time."""
    accounting = NodeAccounting()
    accounting.engine()
    accounting.use(Method.PAGE, 0)
    accounting.window(0.0, 1.0, busy=0.5, split=Split.MODEL, running=1)
    (alone,) = accounting.ledger.engine_accounts(1_000_000_000)

    accounting.engine("beside", since=1.0)
    beside = {each.engine: each for each in accounting.ledger.engine_accounts(1_000_000_000)}

    assert (alone.confidence, beside["e"].confidence) == (MEDIUM, LOW)


def test_an_engine_without_learned_costs_has_no_cut_prompts() -> None:
    assert not PhaseShares().cuts_prompts
