"""To which assignment an engine's tokens belong when it had several."""

from __future__ import annotations

import numpy as np
import pytest

from disagg_exporter.accounting.engine_reports import MOST_KEPT, AssignmentHistory, NodeTokens
from disagg_exporter.accounting.timelines.records import Tokens
from disagg_exporter.model import (
    SLICE_NS_PER_GPU_SECOND,
    Assignment,
    EngineState,
    Method,
    Phase,
    Role,
    TokenAccount,
)
from support.accounting import NodeAccounting, StepReporter


def _as(role: Role, since_ns: int) -> Assignment:
    return Assignment("e", role, (), EngineState.READY, since_ns)


def _tokens(*t_ns: int) -> Tokens:
    return Tokens(np.array(t_ns), np.ones(len(t_ns), np.int64), np.zeros(len(t_ns), np.int64))


def test_tokens_belong_to_the_assignment_at_the_time_of_their_report() -> None:
    owners = AssignmentHistory(_as(Role.PREFILL, 0))
    owners.add(_as(Role.DECODE, 10))

    shares = list(owners.shares(_tokens(9, 10, 11)))

    assert [(was.role, prefill) for was, prefill, _ in shares] == [
        (Role.PREFILL, 1),
        (Role.DECODE, 2),
    ]


def test_the_assignment_history_of_a_silent_engine_is_bounded() -> None:
    owners, roles = AssignmentHistory(_as(Role.DECODE, 0)), (Role.PREFILL, Role.DECODE)
    for t_ns in range(1000):
        owners.add(_as(roles[t_ns % 2], t_ns))

    shares = list(owners.shares(_tokens(*range(1000))))

    assert [was.since_ns for was, *_ in shares] == list(range(1000 - MOST_KEPT, 1000))


def _token_account(accounting: NodeAccounting) -> TokenAccount:
    (account,) = (each for each in accounting.ledger.token_accounts() if each.tokens)
    return account


def test_the_time_of_node_tokens_is_of_engines_that_report_them() -> None:
    """One engine of two reports its tokens; the other works as long and reports none."""
    accounting = NodeAccounting(gpus=2)
    told, silent = StepReporter("told"), StepReporter("silent", 2)
    accounting.engine("told", Role.PREFILL, ["g0"])
    accounting.engine("silent", Role.PREFILL, ["g1"])
    for t in range(1, 30):
        accounting.step(told, told.prefill(t, 0.5, tokens=100))
        accounting.step(silent, silent.prefill(t, 0.5, tokens=0))
    accounting.beat(told, 40)
    accounting.beat(silent, 40)
    accounting.advance(40)
    after = accounting.successor(40, 41)

    assert _token_account(after) == _token_account(accounting)
    account = _token_account(accounting)
    assert account.tokens == 2900
    assert account.slice_ns == pytest.approx(14.5 * SLICE_NS_PER_GPU_SECOND, rel=0.05)


def test_the_time_of_a_follower_counts_for_its_leaders_tokens() -> None:
    accounting = NodeAccounting()
    accounting.engine(role=Role.DECODE)
    accounting.use(Method.FOLLOWER, 0)
    for t in range(1, 30):
        accounting.window(t - 1, t, 0.0, busy=1.0, method=Method.FOLLOWER)
    accounting.advance(60)

    accounts = accounting.ledger.token_accounts()
    assert sum(each.tokens for each in accounts) == 0
    assert sum(each.slice_ns for each in accounts) > 20 * SLICE_NS_PER_GPU_SECOND


def test_time_without_tokens_yet_is_shown_and_resumed() -> None:
    node, after = NodeTokens(), NodeTokens()
    node.count_time(Role.DECODE, Phase.DECODE, ("m", "ns"), 7)
    after.resume(node.accounts())
    after.count_time(Role.DECODE, Phase.DECODE, ("m", "ns"), 1)

    assert after.accounts() == (TokenAccount(Role.DECODE, Phase.DECODE, "m", "ns", 0, 8),)


def test_a_forgotten_model_restarts_time_and_tokens_together() -> None:
    """Its engines may have worked in a role in which they reported no token yet."""
    node, engine = NodeTokens(), _as(Role.DECODE, 0)
    node.count_time(Role.DECODE, Phase.DECODE, (engine.model_name, engine.engine_namespace), 7)
    node.forget_model(engine.model_name)

    node.count(engine, Phase.DECODE, 3)
    [account] = node.accounts()
    assert (account.tokens, account.slice_ns) == (3, 0)
