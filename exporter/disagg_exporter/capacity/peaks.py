"""What a GPU can do at most, by the name its driver gives it: from public data sheets.

Dense BF16 operations and memory bytes a second, at boost clocks. A name that is not here has no
peak, and nothing is divided by one.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Peak:
    """`flops_per_second` are dense BF16 operations, half of what data sheets tell as sparse."""

    flops_per_second: float
    bytes_per_second: float


PEAKS = {
    # NVIDIA H100 Tensor Core GPU data sheet, 2023: SXM, PCIe.
    "NVIDIA H100 80GB HBM3": Peak(989.4e12, 3.35e12),
    "NVIDIA H100 PCIe": Peak(756e12, 2.0e12),
    # NVIDIA H200 Tensor Core GPU data sheet, 2024: SXM.
    "NVIDIA H200": Peak(989.4e12, 4.8e12),
    # NVIDIA DGX B200 data sheet, 2024: an eighth of the system's 36 sparse PFLOPS and 64 TB/s.
    "NVIDIA B200": Peak(2250e12, 8.0e12),
    # NVIDIA A100 Tensor Core GPU data sheet, 2021 (40 GB: 2020).
    "NVIDIA A100-SXM4-80GB": Peak(312e12, 2.039e12),
    "NVIDIA A100 80GB PCIe": Peak(312e12, 1.935e12),
    "NVIDIA A100-SXM4-40GB": Peak(312e12, 1.555e12),
    # NVIDIA L40S data sheet, 2023; NVIDIA L4 data sheet, 2023.
    "NVIDIA L40S": Peak(362e12, 0.864e12),
    "NVIDIA L4": Peak(121e12, 0.3e12),
}


def peak_of(gpu_name: str, weight: float = 1.0) -> Peak | None:
    """Return the peak of a whole GPU; MIG instances have none (their parts of it differ)."""
    return PEAKS.get(gpu_name) if weight == 1.0 else None
