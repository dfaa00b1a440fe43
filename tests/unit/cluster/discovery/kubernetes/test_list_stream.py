"""A list of the API is parsed item by item, wherever its chunks end."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagg_cluster.discovery.kubernetes import pod_store
from disagg_cluster.discovery.kubernetes.pod_store import ListReader, StreamError

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=8,
)


def listed(items: list[object], version: str = "42") -> bytes:
    whole = {"kind": "PodList", "metadata": {"resourceVersion": version}, "items": items}
    return json.dumps(whole, ensure_ascii=False).encode()


def read(data: bytes, sizes: list[int]) -> tuple[list[object], str]:
    reader, items, at = ListReader(), list[object](), 0
    for size in sizes:
        items += reader.feed(data[at : at + size]) if at < len(data) else []
        at += size
    items += reader.feed(data[at:]) if at < len(data) else []
    items += reader.feed(b"")
    return items, reader.resource_version


@given(
    st.lists(st.dictionaries(st.text(max_size=4), VALUES, max_size=4), max_size=6),
    st.lists(st.integers(1, 40), max_size=30),
)
def test_the_items_do_not_depend_on_chunk_boundaries(items: list[object], sizes: list[int]) -> None:
    assert read(listed(items), sizes) == (items, "42")


def test_a_null_list_is_empty() -> None:
    data = b'{"kind":"PodList","metadata":{"resourceVersion":"7"},"items":null}'

    assert read(data, []) == ([], "7")


@given(st.data())
def test_a_list_that_is_cut_off_is_an_error(data: st.DataObject) -> None:
    whole = listed([{"a": 1}, {"b": [2, 3]}])
    cut = whole[: data.draw(st.integers(0, whole.rindex(b"]") - 1))]

    with pytest.raises(StreamError):
        read(cut, [])


@pytest.mark.parametrize(
    "data",
    [
        b"<html>",
        b'{"kind":"Status","code":500}',
        b'{"items":[]}',
        b'{"metadata":{"resourceVersion":"x y"},"items":[]}',
        b'{"metadata":{"resourceVersion":"1"},"items":[{]}',
        b"\xff\xfe",
        b'{"x":"' + b"a" * 200_000,
    ],
)
def test_a_non_list_is_an_error(data: bytes) -> None:
    with pytest.raises(StreamError):
        read(data, [])


def test_an_object_nested_too_deep_is_an_error() -> None:
    head = b'{"metadata":{"resourceVersion":"1"},"items":['

    with pytest.raises(StreamError, match="deep"):
        read(head + b"[" * 200_000, [])


def test_an_oversized_object_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pod_store, "MAX_OBJECT_CHARACTERS", 1000)

    assert len(read(listed([{"a": "x" * 500}] * 9), [300] * 99)[0]) == 9
    with pytest.raises(StreamError, match="1000 characters"):
        read(listed([{"a": "x" * 5000}]), [300] * 99)


def test_a_long_list_needs_memory_for_its_largest_object_only() -> None:
    """A hundred pods of a megabyte each must not take a hundred megabytes."""
    import tracemalloc

    head = b'{"metadata":{"resourceVersion":"1"},"items":['
    item = json.dumps({"metadata": {"annotations": {"big": "x" * 1_000_000}}}).encode()
    reader = ListReader()
    tracemalloc.start()
    try:
        list(reader.feed(head))
        for at in range(100):
            data = (b"," if at else b"") + item
            for start in range(0, len(data), 65536):
                for told in reader.feed(data[start : start + 65536]):
                    assert isinstance(told, dict)
        assert [*reader.feed(b"]}"), *reader.feed(b"")] == [json.loads(item)]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert reader.resource_version == "1"
    assert peak < 12_000_000
