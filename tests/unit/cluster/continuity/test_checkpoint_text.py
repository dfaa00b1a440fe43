"""A checkpoint as text: what was written comes back, and nothing else is accepted."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagg_cluster.continuity.checkpoint_text import Checkpoint, CheckpointError, decode, encode
from disagg_cluster.supervisor.journal.journal_text import Where
from disagg_exporter.model import Role
from support.accounting import NodeAccounting, StepReporter, ns

HERE = Where(boot_id="boot", pid_namespace="pids")
NOW_NS = ns(21)


def checkpoint() -> Checkpoint:
    """The state that a daemon with two busy engines on three devices leaves at 20 s."""
    books = NodeAccounting(gpus=3)
    for number, name in enumerate(("a", "b")):
        teller = StepReporter(name, pid=number + 1)
        books.engine(name, Role.MIXED, [f"g{number}"], pids=(number + 1,))
        for step in range(190):
            books.step(teller, teller.decode(1 + step / 10, 0.07, running=1))
            books.step(teller, teller.prefill(1.02 + step / 10, 0.02, running=1))
    books.power(0, 20, 300.0)
    books.activity(0, 20, 0.4)
    books.advance(20)
    return Checkpoint(books.ledger.checkpoint(ns(20)), {"1": 77}, {"port:1": "a"}, 1.25)


TEXT = encode(HERE, checkpoint())


def test_a_checkpoint_is_decoded_as_it_was_encoded() -> None:
    assert decode(TEXT, HERE, NOW_NS) == checkpoint()


def sealed(body: Any) -> bytes:
    text = json.dumps(body).encode()
    return b"%08x\n" % crc32(text) + text


def changed(change: Callable[[Any], None]) -> bytes:
    body = json.loads(TEXT.partition(b"\n")[2])
    change(body)
    return sealed(body)


def set_at(value: object, *place: int | str) -> Callable[[Any], None]:
    def change(body: Any) -> None:
        for key in place[:-1]:
            body = body[key]
        body[place[-1]] = value

    return change


LEDGER = (3, 0)
DEVICE = (*LEDGER, 1, 0)
LANE = (*LEDGER, 2, 0, 3, 0)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"", "checksum"),
        (TEXT[:-1], "checksum"),
        (TEXT[:300], "checksum"),
        (sealed({}), "of another version"),
        (sealed([[]] * 4), "of another version"),
        (changed(set_at(1, 0)), "of another version of disagg-node .version 1"),
        (changed(set_at("other", 1)), "before the last boot"),
        (changed(set_at("other", 2)), "in another container"),
        (changed(set_at(ns(30), *LEDGER, 0)), "in the future"),
        (changed(set_at(ns(25), *DEVICE, 2)), "the watermark of g0"),
        (changed(set_at(5, *DEVICE, 3, 0, 1)), "the time of g0"),
        (changed(set_at(0, *DEVICE, 0, "weight")), "the weight of g0"),
        (changed(set_at(0.5, *DEVICE, 0, "weight")), "the weight of g0"),
        (changed(set_at([[5, 4]], *DEVICE, 6)), "the absences of g0"),
        (changed(set_at(2**63, *DEVICE, 8)), "out of range"),
        (changed(set_at(-2, *DEVICE, 8)), "out of range"),
        (changed(set_at(float("nan"), *DEVICE, 0, "weight")), "out of range"),
        (changed(set_at(7, *LANE, 2)), "the timeline of a"),
        (changed(set_at([], *LANE, 4)), "the records of a"),
        (changed(set_at(1.5, *LANE, 5, 1)), "the shares of a"),
        (changed(set_at([], *LEDGER, 2, 0, 1)), "the owners of a"),
        (changed(set_at("nobody", *LEDGER, 2, 0, 2)), "Input should be 'steps'"),
        (changed(set_at("a", *LEDGER, 2, 1, 0, "engine")), "names an engine or a device twice"),
    ],
)
def test_impossible_values_are_refused_with_a_reason(text: bytes, why: str) -> None:
    with pytest.raises(CheckpointError, match=why):
        decode(text, HERE, NOW_NS)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=5,
)


@given(st.data(), JSON)
def test_a_manipulated_checkpoint_is_refused_or_leaves_a_balanced_ledger(
    data: st.DataObject, value: object
) -> None:
    """It is refused, or a ledger can continue from it."""
    body = at = json.loads(TEXT.partition(b"\n")[2])
    while True:
        keys = list(at) if isinstance(at, dict) else list(range(len(at)))
        key = data.draw(st.sampled_from(keys))
        inner = at[key]
        if not (isinstance(inner, list | dict) and inner and data.draw(st.booleans())):
            break
        at = inner
    at[key] = value
    try:
        content = decode(sealed(body), HERE, NOW_NS)
    except CheckpointError:
        return
    books = NodeAccounting(gpus=0)
    books.ledger.resume(content.ledger, [d.device for d in content.ledger.devices], (), NOW_NS)
    books.advance(40)
    books.ledger.engine_accounts(ns(40))
    assert books.unbalanced() == []
