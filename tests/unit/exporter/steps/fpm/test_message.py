import tracemalloc

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagg_exporter.steps.fpm.message import (
    MAX_BODY_BYTES,
    FpmError,
    FpmMessage,
    FpmVersionError,
    Queued,
    Scheduled,
    decode,
)

pack = msgspec.msgpack.encode

MIXED = {
    "version": 1,
    "worker_id": "w",
    "dp_rank": 1,
    "counter_id": 7,
    "wall_time": 0.125,
    "scheduled_requests": {
        "num_prefill_requests": 1,
        "sum_prefill_tokens": 512,
        "var_prefill_length": 0.0,
        "sum_prefill_kv_tokens": 1024,
        "num_decode_requests": 8,
        "sum_decode_kv_tokens": 32000,
        "var_decode_kv_tokens": 2.5,
    },
    "queued_requests": {"num_prefill_requests": 3, "num_decode_requests": 1},
}


def test_a_message_is_decoded_with_all_its_fields() -> None:
    assert decode(pack(MIXED)) == FpmMessage(
        worker_id="w",
        dp_rank=1,
        wall_time=0.125,
        scheduled_requests=Scheduled(1, 512, 1024, 8, 32000),
        queued_requests=Queued(3, 1),
    )


def test_unknown_fields_are_ignored_and_missing_ones_are_zero() -> None:
    newer = {"version": 1, "wall_time": 1, "gpu": {"deep": [1, {"x": None}]}}

    assert decode(pack(newer)) == FpmMessage(wall_time=1.0)


def test_a_heartbeat_is_idle_and_a_step_is_not() -> None:
    assert decode(pack({"version": 1, "worker_id": "w"})).idle
    assert not decode(pack(MIXED)).idle


@pytest.mark.parametrize(
    "body",
    [{"version": 2, "wall_time": 0.1}, {"version": 0}, {"version": 2, "wall_time": "soon"}],
)
def test_another_version_is_distinguished_from_garbage(body: dict[str, object]) -> None:
    with pytest.raises(FpmVersionError, match="of version"):
        decode(pack(body))


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "cannot be read"),
        (b"\xc1", "cannot be read"),
        (pack(MIXED)[:-5], "cannot be read"),
        (pack(list(MIXED.values())), "cannot be read"),
        (pack(MIXED | {"wall_time": "0.1"}), "cannot be read"),
        (pack(MIXED | {"scheduled_requests": [1, 2]}), "cannot be read"),
        (b"\x91" * 5000, "cannot be read"),
        (pack(MIXED | {"extra": b"x" * MAX_BODY_BYTES}), "larger than"),
        (pack(MIXED | {"wall_time": float("nan")}), "no step takes"),
        (pack(MIXED | {"wall_time": -0.1}), "no step takes"),
        (pack(MIXED | {"wall_time": 1e9}), "no step takes"),
        (pack(MIXED | {"dp_rank": -1}), "no rank"),
        (pack(MIXED | {"scheduled_requests": {"num_decode_requests": -1}}), "valid count"),
        (pack(MIXED | {"scheduled_requests": {"sum_decode_kv_tokens": 2**60}}), "valid count"),
    ],
)
def test_an_invalid_message_is_refused_with_the_reason(body: bytes, why: str) -> None:
    with pytest.raises(FpmError, match=why) as caught:
        decode(body)

    assert str(caught.value).isprintable()


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=6,
)


@given(st.binary(max_size=300) | st.dictionaries(st.sampled_from(list(MIXED)), VALUES).map(pack))
def test_any_bytes_give_a_valid_message_or_an_error(body: bytes) -> None:
    try:
        message = decode(body)
    except FpmError:
        return
    assert message.version == 1
    assert 0 <= message.wall_time <= 3600
    assert min(msgspec.structs.astuple(message.scheduled_requests)) >= 0


def test_garbage_with_a_huge_declared_length_allocates_little_memory() -> None:
    """A declared length of a gigabyte must not be allocated."""
    promises = [b"\xdf\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff", b"\xdd\xff\xff\xff\xff"]

    tracemalloc.start()
    for body in promises * 100:
        with pytest.raises(FpmError):
            decode(body)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak_bytes < 1_000_000
