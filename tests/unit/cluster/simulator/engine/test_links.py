from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagg_cluster.simulator.engine.links import (
    NVLINK_3,
    NVLINK_4,
    NVLINK_5,
    PCIE_4,
    PCIE_5,
    PCIE_5_PEER,
    GpuLink,
    LinkError,
    LinkRate,
)

LINKS = (NVLINK_3, NVLINK_4, NVLINK_5, PCIE_4, PCIE_5, PCIE_5_PEER)

# KiB and microseconds of vLLM's all-reduce over two GPUs, measured (aiconfigurator-core 0.12.0,
# Apache-2.0, custom_allreduce_perf.parquet; there in elements of two bytes).
MEASURED = {
    PCIE_5: {64: 22.3, 512: 55.5, 4096: 295.9, 16384: 1117.6},
    PCIE_5_PEER: {64: 6.2, 512: 17.6, 4096: 106.0, 16384: 474.9},
    NVLINK_4: {64: 4.5, 512: 6.3, 4096: 20.2, 16384: 81.4},
    PCIE_4: {64: 9.9, 512: 32.1, 4096: 229.4, 16384: 891.9},
}


@pytest.mark.parametrize("link", MEASURED, ids=lambda link: link.name)
def test_an_all_reduce_takes_about_the_measured_time(link: GpuLink) -> None:
    for kilobytes, micros in MEASURED[link].items():
        seconds = link.all_reduce_seconds(kilobytes * 1024, 2)
        assert seconds == pytest.approx(micros * 1e-6, rel=0.15)


def test_one_gpu_needs_no_communication() -> None:
    assert PCIE_5.all_reduce_seconds(1e9, 1) == 0.0


@given(st.sampled_from(LINKS), st.integers(2, 10_000), st.floats(0, 1e12))
def test_any_group_takes_longer_for_larger_messages(link: GpuLink, gpus: int, size: float) -> None:
    """Beyond the largest measured the latency grows with the ring."""
    seconds = link.all_reduce_seconds(size, gpus)

    assert 0 < seconds < link.all_reduce_seconds(2 * size + 1, gpus)
    if gpus > link.rates[-1].gpus:
        assert seconds < link.all_reduce_seconds(size, 2 * gpus)


def test_a_group_between_two_that_were_measured_is_as_slow_as_the_larger() -> None:
    assert PCIE_4.rate(3) == PCIE_4.rates[1]
    assert PCIE_4.rate(2) == PCIE_4.rates[0]


@pytest.mark.parametrize("gpus", [0, -2])
def test_an_empty_group_is_refused(gpus: int) -> None:
    with pytest.raises(LinkError, match=f"no group has {gpus} GPUs"):
        NVLINK_4.all_reduce_seconds(1.0, gpus)


def test_an_impossible_link_is_refused() -> None:
    with pytest.raises(LinkError, match="two GPUs or more"):
        LinkRate(1, 1e-6, 1e9)
    with pytest.raises(LinkError, match="bandwidth above 0"):
        LinkRate(2, 1e-6, 0.0)
    with pytest.raises(LinkError, match="in order"):
        GpuLink("x", (LinkRate(4, 1e-6, 1e9), LinkRate(2, 1e-6, 1e9)))
