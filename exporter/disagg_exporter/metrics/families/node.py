"""The node's own sums: cluster roll-ups touch these, never the devices."""

from __future__ import annotations

from disagg_exporter.metrics.families.family import Data, Family, Kind

_C, _G = Kind.COUNTER, Kind.GAUGE
_NODE = ("model_name", "gpu_name", "engine_namespace")

# One family is read as one row: the formatter would make it eleven lines.
# fmt: off
NODE_FAMILIES: tuple[Family, ...] = (
    Family("disagg_node_phase_seconds_total", _C, Data.NODE, ("role", "phase", *_NODE), "seconds",
           "The sum of this node's device seconds by what they were; take cluster ratios from "
           "these."),
    Family("disagg_node_idle_seconds_total", _C, Data.NODE, ("role", "reason", *_NODE), "seconds",
           "The sum of this node's idle device seconds by reason."),
    Family("disagg_node_unobserved_seconds_total", _C, Data.NODE, ("reason", "gpu_name"), "seconds",
           "The sum of this node's device seconds of which nothing is known, by reason."),
    Family("disagg_node_activity_seconds_total", _C, Data.NODE, ("role", "unit", *_NODE), "seconds",
           "The sum of this node's device activity by part of the device."),
    Family("disagg_node_energy_joules_total", _C, Data.NODE, ("role", "phase", *_NODE), "joules",
           "The sum of this node's device energy by what the time went to; of the devices that "
           "tell it."),
    Family("disagg_node_phase_tokens_total", _C, Data.NODE,
           ("role", "phase", "model_name", "engine_namespace"), "tokens",
           "The sum of this node's tokens computed, by engines long gone too; cached and "
           "transferred tokens are not in it."),
    Family("disagg_node_role_gpus", _G, Data.NODE, ("role", "gpu_name"), "gpus",
           "Devices that have this role now, in whole GPUs (a MIG slice counts as its share)."),
    Family("disagg_node_busy_gpus", _G, Data.NODE, ("role", "phase", *_NODE), "gpus",
           "Devices' worth of work in the last disagg_node_busy_window_seconds. Fast and "
           "provisional; the seconds counters are the record."),
    Family("disagg_node_busy_window_seconds", _G, Data.NODE, (), "seconds",
           "How far back disagg_node_busy_gpus looks."),
    Family("disagg_node_gpu_hour_price", _G, Data.NODE, ("currency",), "",
           "What one GPU of this node costs for an hour, as the node file says; absent where it "
           "does not."),
)
# fmt: on
