"""The path of a request to its first token, and how it depends on the load."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disagg_cluster.planner.capacity.decode_pool import DecodePool
from disagg_cluster.planner.capacity.engine_shape import EngineShape
from disagg_cluster.planner.capacity.prefill_pool import first_steps_seconds, prefill_capacity
from disagg_cluster.planner.capacity.request_mix import RequestMix
from disagg_cluster.planner.capacity.targets import Targets
from disagg_cluster.planner.separation.kv_link import KvLink
from disagg_cluster.planner.separation.prompt_path import PromptPath

MIX = RequestMix(1.0, 1000.0, 200.0, prompt_dispersion=0.5, output_dispersion=0.0)
TARGETS = Targets(0.4, 0.08)
SHAPE = EngineShape("GPU", 1, 400_000.0, 131_072.0)
FAST = KvLink(1e13)
ROOMY = 64.0


@dataclass(frozen=True, slots=True)
class LineCosts:
    """A fake whose step times are linear in what a step contains."""

    shape: EngineShape = SHAPE
    relative_error: float = 0.05
    decode: float = 1e-3

    def step_seconds(
        self,
        prompt_tokens: float,
        attended_tokens: float,
        decodes: float,
        decode_context_tokens: float,
    ) -> float:
        """Time of a step."""
        return 0.005 + 20e-6 * prompt_tokens + self.decode * decodes


COSTS = LineCosts()


def path(mix: RequestMix = MIX, link: KvLink = FAST, targets: Targets = TARGETS) -> PromptPath:
    return PromptPath(COSTS, DecodePool(COSTS, mix, targets), link)


def test_first_tokens_wait_for_actual_steps_not_for_the_target() -> None:
    """At the ITL target two and a half steps are half of the time to the first token."""
    at_target = prefill_capacity(COSTS, MIX, TARGETS, 2)

    found = path().capacity((2, 40), ROOMY)

    assert found.requests_per_second > at_target.requests_per_second * 1.05  # type: ignore[union-attr] # known


def test_more_decode_engines_make_fewer_first_tokens_late() -> None:
    tight = path(targets=Targets(0.12, 0.08))

    late = [tight.late_share(20.0, (2, engines), ROOMY) for engines in (5, 10, 40)]

    assert late[0] > late[1] > late[2]


def test_a_long_transfer_overlaps_with_decode_steps() -> None:
    assert first_steps_seconds(0.02, 0.0) == pytest.approx(2.5 * 0.02)
    assert first_steps_seconds(0.02, 0.1) == pytest.approx(2 * 0.02)


@given(st.floats(0, 1), st.floats(0, 0.2))
def test_a_longer_transfer_never_shortens_the_wait_for_the_first_token(
    itl: float, transfer: float
) -> None:
    longer = transfer * 1.1
    waits = [each + first_steps_seconds(itl, each) for each in (transfer, longer)]

    assert waits[1] >= waits[0] - 1e-9


@given(st.floats(1, 40), st.floats(5e8, 5e10), st.floats(0, 1))
@settings(max_examples=15, deadline=None)
def test_load_slow_links_and_waiting_transfers_never_reduce_late_requests(
    load: float, bytes_per_second: float, dispersion: float
) -> None:
    mix = replace(MIX, prompt_dispersion=dispersion)
    engines = (3, 3)
    on_link, slower = path(mix, KvLink(bytes_per_second)), path(mix, KvLink(bytes_per_second / 2))

    late = on_link.late_share(load, engines, ROOMY)

    assert late >= on_link.late_share(load, engines, ROOMY, links_wait=False) - 1e-9
    assert late <= slower.late_share(load, engines, ROOMY) + 1e-9
    assert late <= on_link.late_share(load * 1.2, engines, ROOMY) + 1e-9


def test_long_prompts_take_longer_to_transfer() -> None:
    """Equal prompts are never late where over a tenth of unequal ones takes too long to send."""
    targets = replace(TARGETS, ttft_seconds=0.3)
    slow = KvLink(1000 * 131_072 / 0.12)

    late = [
        path(replace(MIX, prompt_dispersion=dispersion), slow, targets).late_share(
            0.01, (1, 1), ROOMY
        )
        for dispersion in (0.0, 1.0)
    ]

    assert late[0] == pytest.approx(0, abs=0.01)
    assert late[1] > 0.1


def test_an_infinitely_fast_link_has_no_waits() -> None:
    wireless = path(link=KvLink(math.inf))

    assert wireless.transfers.seconds == 0
    assert wireless.late_share(20.0, (2, 2), ROOMY) == wireless.late_share(
        20.0, (2, 2), ROOMY, links_wait=False
    )
