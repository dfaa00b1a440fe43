from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from disagg_cluster.simulator.engine.kv_cache import Holding, KvCache


def test_tokens_take_whole_blocks() -> None:
    cache, holding = KvCache(10, 16), Holding()

    assert cache.hold(holding, 17)
    assert cache.used_blocks == 2
    assert cache.hold(holding, 32)
    assert (cache.used_blocks, cache.usage_ratio) == (2, 0.2)


def test_without_room_nothing_changes() -> None:
    cache, holding = KvCache(2, 16), Holding()
    cache.hold(holding, 16)

    assert not cache.hold(holding, 33)
    assert cache.used_blocks == 1


def test_a_published_prefix_is_shared_while_in_use_and_found_after_it() -> None:
    cache, first, second, third = KvCache(100, 16), Holding(), Holding(), Holding()
    cache.hold(first, 100)
    cache.publish(7, first, 50)

    assert cache.find(7, second, most_tokens=90) == 48
    assert cache.hold(second, 64)
    assert cache.used_blocks == 7 + 1
    cache.release(first)
    cache.release(second)
    assert cache.used_blocks == 0
    assert cache.find(7, third, most_tokens=40) == 32
    assert cache.used_blocks == 3


def test_unused_prefixes_are_evicted_oldest_first() -> None:
    cache = KvCache(10, 16)
    for identity in (1, 2):
        holding = Holding()
        cache.hold(holding, 64)
        cache.publish(identity, holding, 64)
        cache.release(holding)

    assert cache.hold(Holding(), 16 * 4)
    assert cache.find(1, Holding(), 1000) == 0
    assert cache.find(2, Holding(), 1000) == 64


def test_a_longer_prefix_extends_the_one_that_is_shared() -> None:
    cache, first, second = KvCache(100, 16), Holding(), Holding()
    cache.hold(first, 32)
    cache.publish(1, first, 32)
    cache.release(first)
    cache.find(1, second, 1000)
    cache.hold(second, 96)
    cache.publish(1, second, 80)
    cache.release(second)

    assert cache.find(1, Holding(), 1000) == 80
    assert cache.used_blocks == 5


def test_the_number_of_fitting_steps_is_exact() -> None:
    """Two requests at 30 and 31 tokens of 16-token blocks, three blocks left."""
    cache = KvCache(7, 16)
    growing = []
    for tokens in (30, 31):
        holding = Holding()
        cache.hold(holding, tokens)
        growing.append((holding, tokens))

    assert not cache.always_fits(2, 40)
    # 48 and 49 tokens take all three; one step later the first needs a fourth block as well.
    assert cache.steps_with_room(growing, 40) == 18
    assert cache.steps_with_room(growing, 5) == 5


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["hold", "find", "publish", "release"]),
            st.integers(0, 4),
            st.integers(0, 3),
            st.integers(1, 150),
        ),
        max_size=60,
    )
)
def test_no_block_is_lost_or_counted_twice(acts: list[tuple[str, int, int, int]]) -> None:
    """What is used is what is held, never more than there is; released, all is free again."""
    cache = KvCache(20, 16)
    holdings = [Holding() for _ in range(5)]
    for act, who, identity, tokens in acts:
        holding = holdings[who]
        if act == "hold":
            cache.hold(holding, tokens)
        elif act == "find" and not (holding.own_blocks or holding.shared):
            cache.find(identity, holding, tokens)
        elif act == "publish":
            held = (holding.own_blocks + holding.shared_blocks) * 16
            cache.publish(identity, holding, min(tokens, held))
        elif act == "release":
            cache.release(holding)
        shared = {id(h.shared): h.shared.blocks for h in holdings if h.shared}
        own = sum(h.own_blocks for h in holdings)
        assert cache.used_blocks == own + sum(shared.values()) <= cache.blocks

    for holding in holdings:
        cache.release(holding)
    assert cache.used_blocks == 0
    assert cache.hold(Holding(), 20 * 16)
