"""Who inherits what was learned: only an engine of the same identity."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from disagg_cluster.continuity.learned_models import KEEP_EVERY_NS, EngineIdentities
from disagg_cluster.continuity.learned_text import MOST_ENGINES, decode_entry
from disagg_exporter.model import EnginePage, EngineStatus, Role
from support.learned import (
    DEVICES,
    FOUND,
    LEARNED,
    NOW,
    NOW_NS,
    STATUS,
    LearningNode,
    costs_of,
    left_by,
)


@pytest.mark.parametrize("status", [STATUS, FOUND], ids=["launched", "found"])
def test_an_engine_inherits_its_learned_data_at_the_first_round(
    status: EngineStatus,
) -> None:
    after = LearningNode(left_by(status)).see(status)

    assert after.learned(status) == LEARNED
    (capacity,) = after.learners.capacity_model.capacities([status])
    assert capacity.decode is not None


OTHERS: list[tuple[EngineStatus, dict[str, Any]]] = [
    (STATUS, {"model_name": "other"}),
    (STATUS, {"devices": ("GPU-1",)}),
    (STATUS, {"devices": ("GPU-0", "GPU-1")}),
    (STATUS, {"role": Role.DECODE}),
    (STATUS, {"kind": "sglang"}),
    (FOUND, {"version": "0.33.0"}),
    (FOUND, {"model_name": "other"}),
    (FOUND, {"devices": ("GPU-1",)}),
    (FOUND, {"page": EnginePage("vllm", 0, ranks=2)}),
]


@pytest.mark.parametrize(("status", "change"), OTHERS, ids=str)
def test_an_engine_of_another_identity_inherits_nothing(
    status: EngineStatus, change: dict[str, Any]
) -> None:
    other = replace(status, **change)

    assert not LearningNode(left_by(status)).see(other).learned(other)


def test_another_command_or_gpu_kind_inherits_nothing() -> None:
    command = LearningNode(left_by())
    command.command = "another"
    arguments = LearningNode(left_by(FOUND))
    arguments.arguments = ("serve", "m", "--tensor-parallel-size", "2")

    assert not command.see(STATUS).learned()
    assert not arguments.see(FOUND).learned(FOUND)
    (identity,) = left_by()
    assert identity.gpu_names == ("NVIDIA H200",)


def test_a_found_engine_that_gets_another_rank_in_place_starts_with_nothing() -> None:
    """Its sums are over all ranks: rates of fewer would say that it is full."""
    node = LearningNode(left_by(FOUND)).see(FOUND)
    wider = replace(FOUND, page=EnginePage("vllm", 0, ranks=2))

    assert node.learned(FOUND) == LEARNED
    assert not node.see(wider).learned(wider)
    assert node.see(FOUND).learned(FOUND) == LEARNED


def test_the_page_of_a_launched_engine_does_not_change_its_identity() -> None:
    """Its command says how many ranks it has."""
    paged = replace(STATUS, page=EnginePage("vllm", 0, ranks=2))

    assert LearningNode(left_by(STATUS)).see(paged).learned(paged) == LEARNED


def test_a_role_that_is_inferred_may_change() -> None:
    other = replace(FOUND, role=Role.DECODE)

    assert LearningNode(left_by(FOUND)).see(other).learned(other) == LEARNED


@pytest.mark.parametrize(
    "unknown",
    [{"model_name": ""}, {"devices": ()}, {"devices": ("GPU-9",)}, {"page": None}],
    ids=str,
)
def test_an_unidentified_engine_inherits_and_loses_nothing(
    unknown: dict[str, Any],
) -> None:
    node = LearningNode(left_by(FOUND)).see(replace(FOUND, **unknown))
    before = node.learned(FOUND)

    node.see(FOUND)

    assert not before
    assert node.learned(FOUND) == LEARNED
    assert len(list(node.models.stored(NOW))) == 1


def test_a_running_engine_keeps_its_newer_data() -> None:
    """It is briefly unknown; what was kept of it is older than its present state."""
    node = LearningNode(left_by()).see(STATUS)
    more = replace(LEARNED, costs=((0, costs_of(500)),))
    node.learners.restore("mixed-0", more, NOW_NS)

    node.see(replace(STATUS, pid=None)).see(STATUS)

    assert node.learned() == more


def test_an_engine_may_change_identity_and_return() -> None:
    node = LearningNode(left_by()).see(STATUS)
    node.command = "another"

    other = node.see(replace(STATUS, pid=8)).learned()
    node.command = "digest"

    assert not other
    assert node.see(STATUS).learned() == LEARNED


@pytest.mark.parametrize("status", [STATUS, FOUND], ids=["launched", "found"])
def test_a_reused_pid_is_read_again(status: EngineStatus) -> None:
    node = LearningNode(left_by(status)).see(status)
    node.command, node.arguments = "another", ("serve", "m", "--tensor-parallel-size", "2")

    same = node.see(status).learned(status)
    node.start_ticks += 1

    assert same == LEARNED
    assert not node.see(status).learned(status)


def test_the_processes_of_the_latest_engines_are_remembered() -> None:
    read: list[int] = []

    def command_line(pid: int) -> tuple[str, ...]:
        read.append(pid)
        return ("serve", "m")

    identities = EngineIdentities(lambda: DEVICES, {}, command_line, lambda _pid: 1)
    engines = [replace(FOUND, engine=f"found-{n}", pid=n) for n in range(MOST_ENGINES + 1)]
    for engine in (*engines, engines[-1], engines[0]):
        assert identities.of(engine) is not None

    assert read == [*range(MOST_ENGINES + 1), 0]


def test_the_hours_without_a_daemon_add_to_the_age_of_learned_data() -> None:
    node = LearningNode(left_by()).see(STATUS, now=NOW + 3600)

    (known,) = node.learned().limits.decode
    assert known.age_ns == 3600 * 10**9


def test_data_unused_for_a_day_is_not_written() -> None:
    models = LearningNode(left_by()).models

    assert len(list(models.stored(NOW + 86_000))) == 1
    assert list(models.stored(NOW + 86_500)) == []


def test_saving_is_due_after_growth_or_time() -> None:
    node = LearningNode().see(STATUS)
    fresh = node.models.due(NOW_NS)
    node.models.keep("mixed-0", NOW_NS, NOW)
    known = node.models.due(NOW_NS + 1)
    node.learners.restore("mixed-0", LEARNED, NOW_NS)
    grown = node.models.due(NOW_NS + 1)
    node.models.keep("mixed-0", NOW_NS, NOW)

    assert (fresh, known, grown) == (("mixed-0",), (), ("mixed-0",))
    assert node.models.due(NOW_NS + KEEP_EVERY_NS - 1) == ()
    assert node.models.due(NOW_NS + KEEP_EVERY_NS) == ("mixed-0",)


def test_only_the_engines_used_last_are_remembered() -> None:
    """Pods come and go under ever new names, and each may have taught much."""
    node = LearningNode()
    for number in range(MOST_ENGINES + 2):
        status = replace(FOUND, engine=f"pod-{number}")
        node.see(status, now=NOW + number)
        node.learners.restore(status.engine, LEARNED, NOW_NS)
        assert node.models.keep_all(NOW_NS, NOW + number) == {}

    stored = list(node.models.stored(NOW + MOST_ENGINES + 2))

    names = {decode_entry(entry).identity.engine for entry in stored}
    assert names == {f"pod-{number}" for number in range(2, MOST_ENGINES + 2)}
