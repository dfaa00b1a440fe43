"""Parses a dcgm-exporter's page into devices and their values.

Names and units are those of its own list of counters (`etc/default-counters.csv`, and the DCGM
fields 203, 1001 to 1005); some of its lists comment out the profiling counters, which are then
absent here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from disagg_exporter.engine_pages.exposition.layout import SeriesKeys
from disagg_exporter.engine_pages.exposition.lines import SeriesFilter, find
from disagg_exporter.model import GPU_SLICES, Device, Direction, LinkKind

_MIB = 1024 * 1024
# DCGM's "blank" values for integers and floats; older exporters print them.
_BLANK = 2.0**47
_BLANK_COUNT = 2.0**62

ENERGY = "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"
UTILIZATION = "DCGM_FI_DEV_GPU_UTIL"
GRAPHICS = "DCGM_FI_PROF_GR_ENGINE_ACTIVE"
PROFILING = {
    GRAPHICS: "graphics_ratio",
    "DCGM_FI_PROF_SM_ACTIVE": "sm_ratio",
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": "tensor_ratio",
    "DCGM_FI_PROF_DRAM_ACTIVE": "dram_ratio",
}
MEMORY_FREE, MEMORY_USED = "DCGM_FI_DEV_FB_FREE", "DCGM_FI_DEV_FB_USED"
MEMORY_RESERVED = "DCGM_FI_DEV_FB_RESERVED"
POWER, CLOCK = "DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_SM_CLOCK"
XID = "DCGM_FI_DEV_XID_ERRORS"
TEMPERATURE, MEMORY_TEMPERATURE = "DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_MEMORY_TEMP"
POWER_LIMIT = "DCGM_FI_DEV_POWER_MGMT_LIMIT"
LINKS = {
    "DCGM_FI_PROF_PCIE_TX_BYTES": (LinkKind.PCIE, Direction.SENT),
    "DCGM_FI_PROF_PCIE_RX_BYTES": (LinkKind.PCIE, Direction.RECEIVED),
    "DCGM_FI_PROF_NVLINK_TX_BYTES": (LinkKind.NVLINK, Direction.SENT),
    "DCGM_FI_PROF_NVLINK_RX_BYTES": (LinkKind.NVLINK, Direction.RECEIVED),
}
"""Means over its last interval, in bytes per second, under any name in its list of counters."""

_WANTED = SeriesFilter(
    (
        *PROFILING,
        *(ENERGY, UTILIZATION, MEMORY_FREE, MEMORY_USED, MEMORY_RESERVED, POWER, CLOCK, XID),
        *(TEMPERATURE, MEMORY_TEMPERATURE, POWER_LIMIT, *LINKS),
    )
)
_BUSY_PERCENT = 50.0


@dataclass(frozen=True, slots=True)
class DcgmDevice:
    """One GPU or MIG instance, and its values in our units; what is not reported is absent.

    For a MIG instance the page has the GPU's UUID and the instance's number: its key is both. `xid`
    is the number of the latest error, 0 where there was none; `link_rates` are bytes per second.
    """

    device: Device
    values: Mapping[str, float] = field(default_factory=dict)
    xid: int | None = None
    link_rates: Mapping[tuple[LinkKind, Direction], float] = field(default_factory=dict)


def parse_dcgm(text: bytes, heads: SeriesKeys) -> tuple[DcgmDevice, ...]:
    """Return the devices of a page in the order of their index.

    Raises:
        PageError: One of the required lines is malformed.
    """
    reported: dict[tuple[str, str], dict[str, float]] = {}
    labels: dict[tuple[str, str], Mapping[str, str]] = {}
    for name, samples in find(text, _WANTED, heads, "dcgm-exporter").items():
        limit = _BLANK_COUNT if name == ENERGY else _BLANK
        for sample in samples:
            uuid = sample.labels.get("UUID") or sample.labels.get("uuid")
            if uuid and 0 <= sample.value < limit:
                key = (uuid, sample.labels.get("GPU_I_ID", ""))
                # A GPU shared by several pods is listed once for each, with the same values.
                reported.setdefault(key, {}).setdefault(name, sample.value)
                labels.setdefault(key, sample.labels)
    devices = [_device(labels[key], reported[key], key) for key in reported]
    return tuple(sorted(devices, key=lambda d: (d.device.index, d.device.device)))


def _device(
    labels: Mapping[str, str], reported: Mapping[str, float], key: tuple[str, str]
) -> DcgmDevice:
    uuid, instance = key
    index = labels.get("gpu", "")
    whole = labels.get("device") or f"nvidia{index}"
    memory = [reported[name] for name in (MEMORY_FREE, MEMORY_USED) if name in reported]
    total_mib = sum(memory) + reported.get(MEMORY_RESERVED, 0.0) if len(memory) == 2 else None
    profile = re.match(r"(\d+)g", labels.get("GPU_I_PROFILE", ""))
    return DcgmDevice(
        Device(
            gpu=f"{uuid}/gi{instance}" if instance else uuid,
            index=int(index) if index.isdecimal() else 0,
            gpu_name=labels.get("modelName", ""),
            device=f"{whole}/gi{instance}" if instance else whole,
            pci_bus_id=labels.get("pci_bus_id", ""),
            weight=int(profile[1]) / GPU_SLICES if instance and profile else 1.0,
            memory_total_bytes=None if total_mib is None else round(total_mib * _MIB),
        ),
        _values(reported, mig=bool(instance)),
        int(reported[XID]) if XID in reported else None,
        # Each MIG instance is listed with the values of the whole GPU.
        {} if instance else {LINKS[name]: reported[name] for name in LINKS if name in reported},
    )


_OF_WHOLE_GPUS = (
    (POWER, "power_watts", 1.0),
    (ENERGY, "energy_joules", 1e-3),
    (POWER_LIMIT, "power_limit_watts", 1.0),
)


def _values(reported: Mapping[str, float], *, mig: bool) -> dict[str, float]:
    values = {
        value: reported[name]
        for name, value in PROFILING.items()
        if name in reported and reported[name] <= 1
    }
    percent = reported.get(UTILIZATION)
    # The profiling module may report 0 for weeks while the GPU works (NVIDIA/dcgm-exporter#662).
    if percent is not None and percent >= _BUSY_PERCENT and values.get("graphics_ratio") == 0:
        values = {}
    if percent is not None and percent <= 100 and not mig:
        values["utilization_ratio"] = percent / 100
    for name, value, factor in (
        (MEMORY_USED, "memory_used_bytes", _MIB),
        (CLOCK, "sm_clock_hertz", 1e6),
        (TEMPERATURE, "temperature_celsius", 1.0),
        (MEMORY_TEMPERATURE, "memory_temperature_celsius", 1.0),
        # Each MIG instance is listed with the values of the whole GPU.
        *(() if mig else _OF_WHOLE_GPUS),
    ):
        if name in reported:
            values[value] = reported[name] * factor
    return values
