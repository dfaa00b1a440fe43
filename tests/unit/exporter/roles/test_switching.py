"""Engines that can switch roles have the role of their traffic, and keep it until another lasts."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from disagg_exporter.model import Role
from disagg_exporter.roles.evidence.traffic import REMEMBERED_WINDOWS, WINDOW_SECONDS, SwitchingRole
from disagg_exporter.roles.evidence.types import Traffic

PREFILLS, DECODES, BOTH = (100_000.0, 10.0), (10.0, 100_000.0), (50_000.0, 50_000.0)
RESTS, LITTLE = (0.0, 0.0), (3000.0, 1.0)


class EngineTraffic:
    """An engine's traffic, a window at a time, and the role that it gets meanwhile."""

    def __init__(self, computed: float = 0.0, made: float = 0.0) -> None:
        self.switching, self.seconds = SwitchingRole(), 0.0
        self.computed, self.made = computed, made
        self.look()

    def look(self) -> None:
        total = Traffic(None, self.computed, 0.0, self.made)
        self.switching.ingest(total, self.seconds)

    def does(self, *windows: tuple[float, float]) -> list[Role | None]:
        roles = []
        for computed, made in windows:
            self.seconds += WINDOW_SECONDS
            self.computed, self.made = self.computed + computed, self.made + made
            self.look()
            roles.append(self.switching.role)
        return roles


def test_the_first_role_comes_from_the_total_traffic() -> None:
    assert EngineTraffic(100, 900_000).switching.role is Role.DECODE
    assert EngineTraffic(100, 100).switching.role is None


def test_a_role_changes_after_two_windows_of_other_traffic() -> None:
    engine = EngineTraffic(100, 900_000)

    assert engine.does(PREFILLS, PREFILLS) == [Role.DECODE, Role.PREFILL]


def test_the_switching_window_gives_no_role() -> None:
    engine = EngineTraffic(100, 900_000)

    assert engine.does(DECODES, BOTH, PREFILLS, PREFILLS) == [
        Role.DECODE,
        Role.DECODE,
        Role.DECODE,
        Role.PREFILL,
    ]


def test_a_flapping_engine_has_no_role_until_one_lasts() -> None:
    engine = EngineTraffic(100, 900_000)

    roles = engine.does(*(PREFILLS, DECODES) * 20)

    assert roles[:REMEMBERED_WINDOWS] == [Role.DECODE] * (REMEMBERED_WINDOWS - 1) + [None]
    assert set(roles[REMEMBERED_WINDOWS:]) == {None}
    assert engine.does(PREFILLS, PREFILLS)[-1] is Role.PREFILL


def test_occasional_other_windows_do_not_remove_a_role() -> None:
    engine = EngineTraffic(100, 900_000)

    assert set(engine.does(*(DECODES, DECODES, PREFILLS) * 10)) == {Role.DECODE}


def test_traffic_that_fits_no_role_for_long_leaves_none() -> None:
    switching = SwitchingRole()
    total = [20.0 * 10, 0.0, 100_000.0, 20_000.0]
    switching.ingest(Traffic(*total), 0.0)
    assert switching.role is Role.DECODE

    for window in range(1, REMEMBERED_WINDOWS + 1):
        total = [old + more for old, more in zip(total, (200, 50_000, 50_000, 10_000), strict=True)]
        switching.ingest(Traffic(*total), window * WINDOW_SECONDS)

    assert (switching.role, switching.traffic_seen) == (None, None)


def test_an_idle_engine_keeps_its_role() -> None:
    assert set(EngineTraffic(900_000, 100).does(*(RESTS,) * 30)) == {Role.PREFILL}


def test_little_traffic_is_observed_for_longer() -> None:
    engine = EngineTraffic(100, 900_000)

    assert engine.does(*(LITTLE,) * 8)[-1] is Role.PREFILL


def test_a_restarted_process_is_judged_again() -> None:
    engine = EngineTraffic(100, 900_000)
    engine.computed = engine.made = 0.0
    engine.does(RESTS)

    assert engine.switching.role is None


@given(st.lists(st.sampled_from([PREFILLS, DECODES, BOTH, RESTS, LITTLE]), max_size=40))
def test_no_two_changes_follow_each_other_within_a_window(
    windows: list[tuple[float, float]],
) -> None:
    roles = EngineTraffic(100, 900_000).does(*windows)
    changes = [at for at in range(1, len(roles)) if roles[at] is not roles[at - 1]]

    assert all(after - before >= 2 for before, after in pairwise(changes))
