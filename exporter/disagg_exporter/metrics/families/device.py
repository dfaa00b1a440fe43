"""The families of one device each: what it is, what it tells, where its seconds went."""

from __future__ import annotations

from disagg_exporter.metrics.families.family import Data, Family, Kind

_C, _G, _I = Kind.COUNTER, Kind.GAUGE, Kind.INFO

# One family is read as one row: the formatter would make it eleven lines.
# fmt: off
DEVICE_FAMILIES: tuple[Family, ...] = (
    Family("disagg_gpu_info", _I, Data.DEVICES,
           ("gpu", "index", "gpu_name", "pci_bus_id", "device"), "",
           "What a device is; join on gpu."),
    Family("disagg_gpu_assignment_info", _I, Data.DEVICES,
           ("gpu", "engine", "role", "source", "confidence", "engine_pod", "engine_namespace"), "",
           "Which engine a device serves and in which role, how that is known and how surely."),
    Family("disagg_gpu_memory_used_bytes", _G, Data.DEVICES, ("gpu",), "bytes",
           "Device memory in use, by whomever."),
    Family("disagg_gpu_memory_total_bytes", _G, Data.DEVICES, ("gpu",), "bytes",
           "Device memory there is."),
    Family("disagg_gpu_power_watts", _G, Data.DEVICES, ("gpu",), "watts",
           "Power drawn at the latest reading."),
    Family("disagg_gpu_sm_clock_hertz", _G, Data.DEVICES, ("gpu",), "hertz",
           "Clock of the streaming multiprocessors at the latest reading."),
    Family("disagg_gpu_utilization_ratio", _G, Data.DEVICES, ("gpu",), "ratio",
           "The share of the time before the latest reading in which at least one kernel ran: "
           "since the reading before by the device's performance counters, else the driver's own "
           "figure for its last sample period. It says busy, not full: one small kernel that never "
           "ends shows 1. It is one sample, not an average between scrapes; take shares of time "
           "from the seconds counters."),
    Family("disagg_gpu_ecc_errors_total", _C, Data.DEVICES, ("gpu", "kind"), "",
           "Memory errors in the device's whole life, as its driver counts them; absent without "
           "ECC and on MIG instances."),
    Family("disagg_gpu_xid_errors_total", _C, Data.DEVICES, ("gpu", "xid"), "",
           "Errors of a GPU by NVIDIA's Xid number, since it is watched; those that end or harm "
           "its work (48, 74, 79, 94, 95) stand at 0 from the start. Absent where the driver "
           "reports no events."),
    Family("disagg_gpu_phase_seconds_total", _C, Data.ACCOUNTS, ("gpu", "role", "phase"), "seconds",
           "Seconds of a device by what it did and the role it had then, committed up to its "
           "watermark. phase is prefill, decode, idle or unattributed; with the unobserved seconds "
           "they sum to the device's weight times (watermark - start)."),
    Family("disagg_gpu_idle_seconds_total", _C, Data.ACCOUNTS, ("gpu", "reason"), "seconds",
           "Idle seconds of a device by reason; the reasons sum to its idle seconds."),
    Family("disagg_gpu_unattributed_seconds_total", _C, Data.ACCOUNTS, ("gpu", "reason"), "seconds",
           "Seconds a device was busy for nothing that an engine told us of, by reason; a lower "
           "bound."),
    Family("disagg_gpu_unobserved_seconds_total", _C, Data.ACCOUNTS, ("gpu", "reason"), "seconds",
           "Seconds of which nothing is known, by reason: neither an engine nor the device told."),
    Family("disagg_gpu_watermark_timestamp_seconds", _G, Data.ACCOUNTS, ("gpu",), "seconds",
           "Unix time up to which a device's seconds are committed."),
    Family("disagg_gpu_start_timestamp_seconds", _G, Data.ACCOUNTS, ("gpu",), "seconds",
           "Unix time at which the accounting of a device began."),
    Family("disagg_gpu_activity_seconds_total", _C, Data.ACCOUNTS, ("gpu", "role", "unit"),
           "seconds",
           "Activity of a part of the device, integrated over time and weighted like its seconds, "
           "by the role it had then: divided by wall seconds it is the mean activity. Counted as "
           "read, without waiting for the watermark; a unit the device never told is absent."),
    Family("disagg_gpu_throttle_seconds_total", _C, Data.ACCOUNTS, ("gpu", "reason"), "seconds",
           "Seconds in which a reason held the device's clocks back, as read. Several may hold at "
           "once; the low clocks of an idle device are no throttling."),
    Family("disagg_gpu_phase_energy_joules_total", _C, Data.ACCOUNTS, ("gpu", "role", "phase"),
           "joules",
           "Energy of a device by what its time went to, committed up to its watermark; phase may "
           "also be unobserved, and all of them sum to what the device told. Absent where it tells "
           "no energy, as MIG instances do."),
)
# fmt: on
