"""Communication between the GPUs of an engine, and its duration.

Latency and bandwidth of each link are a straight line (seconds = latency + bytes on the wire over
bandwidth) through vLLM's own all-reduce as NVIDIA's aiconfigurator measured it (in the wheel
`aiconfigurator-core` 0.12.0, Apache-2.0: `comm/vllm/*/custom_allreduce_perf.parquet`, replayed from
a CUDA graph, BF16), messages of 8 KiB to 64 MiB. No run of an engine went into them.
"""

from __future__ import annotations

from dataclasses import dataclass

from disagg_exporter.errors import DisaggError


class LinkError(DisaggError):
    """An impossible link, or group of GPUs; the text says what is wrong."""


@dataclass(frozen=True, slots=True)
class LinkRate:
    """A link among `gpus` GPUs: latency, and one GPU's bandwidth in one direction."""

    gpus: int
    latency_seconds: float
    bytes_per_second: float

    def __post_init__(self) -> None:
        if self.gpus < 2 or self.latency_seconds < 0 or not self.bytes_per_second > 0:
            raise LinkError(
                f"a link joins two GPUs or more, at a latency from 0 up and a bandwidth above 0, "
                f"and this is {self}"
            )


@dataclass(frozen=True, slots=True)
class GpuLink:
    """What connects the GPUs of a node, as measured for groups of some sizes."""

    name: str
    rates: tuple[LinkRate, ...]

    def __post_init__(self) -> None:
        sizes = [rate.gpus for rate in self.rates]
        if not sizes or sizes != sorted(set(sizes)):
            raise LinkError(f"{self.name}: rates in order of their number of GPUs, one at least")

    def all_reduce_seconds(self, size_bytes: float, gpus: int) -> float:
        """Return the time to sum `size_bytes` bytes from each of `gpus` GPUs on all; 0 for one.

        A ring sends 2 (n - 1) / n of it over each link (Patarasuk and Yuan, JPDC 2009).

        Raises:
            LinkError: There is no group of so many GPUs.
        """
        if gpus < 1:
            raise LinkError(f"no group has {gpus} GPUs")
        if gpus == 1:
            return 0.0
        rate = self.rate(gpus)
        sent_bytes = 2 * (gpus - 1) / gpus * size_bytes
        return rate.latency_seconds + sent_bytes / rate.bytes_per_second

    def rate(self, gpus: int) -> LinkRate:
        """Return the rate among so many GPUs: as measured for the next larger group.

        Beyond the largest, this is an extrapolation: its bandwidth, and a latency that grows with
        the steps around the ring.
        """
        for rate in self.rates:
            if gpus <= rate.gpus:
                return rate
        last = self.rates[-1]
        latency_seconds = last.latency_seconds * (gpus - 1) / (last.gpus - 1)
        return LinkRate(gpus, latency_seconds, last.bytes_per_second)


NVLINK_4 = GpuLink(
    "NVLink 4",
    (LinkRate(2, 4.2e-6, 228e9), LinkRate(4, 5.2e-6, 259e9), LinkRate(8, 6.4e-6, 313e9)),
)
"""H100 SXM5, vLLM 0.24.0; within 9-12 % of two GPUs' times, 28 % of four's and eight's."""

NVLINK_3 = GpuLink(
    "NVLink 3",
    (LinkRate(2, 5.0e-6, 156e9), LinkRate(4, 6.2e-6, 151e9), LinkRate(8, 7.9e-6, 154e9)),
)
"""A100 SXM4, vLLM 0.14.0; within 36 %."""

NVLINK_5 = GpuLink(
    "NVLink 5",
    (LinkRate(2, 7.6e-6, 293e9), LinkRate(4, 8.6e-6, 391e9), LinkRate(8, 11.2e-6, 517e9)),
)
"""B200, vLLM 0.24.0; within 53 %: its reduction algorithm depends on the size."""

PCIE_4 = GpuLink(
    "PCIe Gen4 x16",
    (LinkRate(2, 5.4e-6, 19.1e9), LinkRate(4, 11.4e-6, 3.8e9), LinkRate(8, 17.6e-6, 2.1e9)),
)
"""L40S, vLLM 0.22.0; within 12 % of two GPUs' times, 54 % of eight's."""

PCIE_5 = GpuLink("PCIe Gen5 x16", (LinkRate(2, 18.9e-6, 15.0e9),))
"""RTX PRO 6000, vLLM 0.19.0; within 8 %, two GPUs only."""

PCIE_5_PEER = GpuLink(
    "PCIe Gen5 x16, peer to peer",
    (LinkRate(2, 4.5e-6, 37.9e9), LinkRate(4, 15.7e-6, 24.5e9), LinkRate(8, 31.6e-6, 20.1e9)),
)
"""RTX PRO 6000, vLLM 0.24.0; within 9 % of two GPUs' times, 51 % of more. It is faster than the one
above by more than software can explain at that link speed, so data goes from GPU to GPU.
"""
