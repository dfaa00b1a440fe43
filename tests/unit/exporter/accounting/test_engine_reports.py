"""Whose tokens are, of an engine that was several things."""

from __future__ import annotations

import numpy as np

from disagg_exporter.accounting.engine_reports import MOST_KEPT, AssignmentHistory
from disagg_exporter.accounting.timelines.records import Tokens
from disagg_exporter.model import Assignment, EngineState, Role


def _as(role: Role, since_ns: int) -> Assignment:
    return Assignment("e", role, (), EngineState.READY, since_ns)


def _tokens(*t_ns: int) -> Tokens:
    return Tokens(np.array(t_ns), np.ones(len(t_ns), np.int64), np.zeros(len(t_ns), np.int64))


def test_tokens_are_of_what_the_engine_was_when_it_told_them() -> None:
    owners = AssignmentHistory(_as(Role.PREFILL, 0))
    owners.add(_as(Role.DECODE, 10))

    shares = list(owners.shares(_tokens(9, 10, 11)))

    assert [(was.role, prefill) for was, prefill, _ in shares] == [
        (Role.PREFILL, 1),
        (Role.DECODE, 2),
    ]


def test_an_engine_that_changes_for_ever_and_tells_nothing_is_not_remembered_for_ever() -> None:
    owners, roles = AssignmentHistory(_as(Role.DECODE, 0)), (Role.PREFILL, Role.DECODE)
    for t_ns in range(1000):
        owners.add(_as(roles[t_ns % 2], t_ns))

    shares = list(owners.shares(_tokens(*range(1000))))

    assert [was.since_ns for was, *_ in shares] == list(range(1000 - MOST_KEPT, 1000))
