"""Every metric family we export: its name, type, labels, unit, meaning and where it comes from.

The one place that may invent a metric name. `cluster`, `node`, `instance`, `job`, `pod` and
`namespace` are never labels here: the first four belong to the scraper, and it would overwrite
the last two.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """What a family's numbers do: only grow, move freely, or carry facts beside a constant 1."""

    COUNTER = "counter"
    GAUGE = "gauge"
    INFO = "info"


class Data(StrEnum):
    """Which part of a `Snapshot` a family is made of."""

    DEVICES = "devices"
    ACCOUNTS = "accounts"
    NODE = "node sums"
    ENGINES = "engines"
    ROUTER = "router"
    WORKERS = "workers"
    COLLECTORS = "collectors"
    BUILD = "build"

    @property
    def lasting(self) -> bool:
        """Still shown when the snapshot is stale, so that a failure can be seen at all."""
        return self in (Data.WORKERS, Data.COLLECTORS, Data.BUILD)


@dataclass(frozen=True, slots=True)
class Family:
    """One metric family; `unit` is the suffix of its name, empty where it counts things."""

    name: str
    kind: Kind
    data: Data
    labels: tuple[str, ...]
    unit: str
    help: str


_C, _G, _I = Kind.COUNTER, Kind.GAUGE, Kind.INFO
_NODE = ("model_name", "gpu_name", "engine_namespace")

# One family is read as one row: the formatter would make it eleven lines.
# fmt: off
FAMILIES: tuple[Family, ...] = (
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
    Family("disagg_node_phase_seconds_total", _C, Data.NODE, ("role", "phase", *_NODE), "seconds",
           "The sum of this node's device seconds by what they were; take cluster ratios from "
           "these."),
    Family("disagg_node_idle_seconds_total", _C, Data.NODE, ("role", "reason", *_NODE), "seconds",
           "The sum of this node's idle device seconds by reason."),
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
    Family("disagg_engine_info", _I, Data.ENGINES,
           ("engine", "role", "model_name", "kind", "version"), "",
           "What an engine is; join on engine."),
    Family("disagg_engine_up", _G, Data.ENGINES, ("engine",), "",
           "1 when the engine answered its last health probe, 0 when it did not."),
    Family("disagg_engine_watermark_timestamp_seconds", _G, Data.ENGINES, ("engine",), "seconds",
           "Unix time up to which the engine's GPU-seconds are committed."),
    Family("disagg_engine_gpu_seconds_total", _C, Data.ENGINES,
           ("engine", "role", "phase"), "seconds",
           "GPU-seconds an engine used: an engine on four devices uses four a second."),
    Family("disagg_engine_phase_tokens_total", _C, Data.ENGINES,
           ("engine", "role", "phase"), "tokens",
           "Tokens an engine computed; cached and transferred tokens are not in it."),
    Family("disagg_engine_steps_total", _C, Data.ENGINES, ("engine", "role", "kind"), "",
           "Steps the engine says it took: context, generation, mixed or dummy."),
    Family("disagg_engine_step_seconds_total", _C, Data.ENGINES, ("engine", "role", "kind"),
           "seconds",
           "Seconds the engine says its steps took, on each of its devices. Of an engine with "
           "async scheduling these are mere waits."),
    Family("disagg_engine_requests", _G, Data.ENGINES, ("engine", "role", "state"), "",
           "Requests in an engine: running, waiting for room, or deferred (waiting for something "
           "else, such as KV to arrive). From its step records; from its metrics page where it "
           "sends none."),
    Family("disagg_engine_kv_cache_usage_ratio", _G, Data.ENGINES, ("engine", "role"), "ratio",
           "Share of the engine's KV cache in use; known from where disagg_engine_requests is."),
    Family("disagg_attribution_info", _I, Data.ENGINES, ("engine", "method", "split"), "",
           "How an engine's GPU-seconds were found: steps, page_cpu, role or none; and how steps "
           "that prefill and decode at once are divided now: by a cost model learned from the "
           "engine's steps, by tokens until that has earned trust, or none."),
    Family("disagg_attribution_residual_ratio", _G, Data.ENGINES, ("engine",), "ratio",
           "Mean error of the cost model's prediction of a step's length over that length: of "
           "mixed steps where there are enough, else of all."),
    Family("disagg_attribution_fitted_steps", _G, Data.ENGINES, ("engine",), "",
           "Steps the cost model has learned from; it remembers the latest thousands."),
    Family("disagg_span_cut_seconds_total", _C, Data.ENGINES, ("engine",), "seconds",
           "Seconds of steps that fitted nowhere, even late, and are in no other counter."),
    Family("disagg_late_records_total", _C, Data.ENGINES, ("engine",), "",
           "Step records that came after their time had been committed."),
    Family("disagg_lost_records_total", _C, Data.ENGINES, ("engine",), "",
           "Step records that never came, by the gaps in their numbering."),
    Family("disagg_router_requests_total", _C, Data.ROUTER, (), "",
           "Requests the router has answered, failed ones included."),
    Family("disagg_router_prefill_errors_total", _C, Data.ROUTER, ("worker",), "",
           "Requests that failed at a prefill engine, as the router saw it."),
    Family("disagg_router_decode_errors_total", _C, Data.ROUTER, ("worker",), "",
           "Requests that failed at a decode engine, as the router saw it."),
    Family("disagg_router_active_requests", _G, Data.ROUTER, ("phase",), "",
           "Requests the router has at engines of a phase, waiting there or running."),
    Family("disagg_router_pending_requests", _G, Data.ROUTER, (), "",
           "Requests whose decode engine is chosen and waits for their prefill to end."),
    Family("disagg_router_worker_health", _G, Data.ROUTER, ("worker",), "",
           "1 while the router holds an engine well and sends it requests, 0 while it does not."),
    Family("disagg_worker_state", _G, Data.WORKERS, ("worker", "state"), "",
           "1 for the state a worker is in, 0 for the others."),
    Family("disagg_worker_restarts_total", _C, Data.WORKERS, ("worker",), "",
           "How often a worker was started again."),
    Family("disagg_worker_start_timestamp_seconds", _G, Data.WORKERS, ("worker",), "seconds",
           "Unix time at which the running process of a worker began; absent while none runs."),
    Family("disagg_collector_success", _G, Data.COLLECTORS, ("collector",), "",
           "1 when the collector's last round succeeded, 0 when it failed."),
    Family("disagg_collector_duration_seconds", _G, Data.COLLECTORS, ("collector",), "seconds",
           "How long the collector's last round took."),
    Family("disagg_collector_last_success_timestamp_seconds", _G, Data.COLLECTORS,
           ("collector",), "seconds",
           "Unix time of the collector's last success; absent until it has had one."),
    Family("disagg_build_info", _I, Data.BUILD, ("version",), "",
           "Which disagg-node this is."),
    Family("disagg_simulated_info", _I, Data.BUILD, (), "",
           "There only when devices or engines are simulated: nothing on the page is then a "
           "measurement."),
)
# fmt: on

LABELS: dict[str, str] = {
    "gpu": "UUID of the device",
    "index": "number of the device on its node",
    "gpu_name": "product name of the device",
    "pci_bus_id": "PCI address; empty where there is none",
    "device": "the node's own name of the device, such as nvidia0 or cpu",
    "engine": "name of the engine, unique on its node",
    "role": "what the engine or device is for: prefill, decode, mixed, encode, none, unknown",
    "phase": "what was done: prefill or decode; for device seconds also idle and unattributed, "
    "for energy unobserved, too",
    "reason": "why the seconds were not work; of throttling power_cap, thermal, hw_slowdown (by a "
    "half or more), sync_boost or other (clocks that somebody set, and what drivers add)",
    "unit": "part of the device: graphics (anything at all ran), sm (multiprocessors busy), tensor "
    "(their tensor cores, any format), dram (memory bandwidth, of its peak)",
    "state": "state of the requests, or of the worker",
    "source": "where the role is known from",
    "confidence": "how sure the role is",
    "engine_pod": "Kubernetes pod of the engine; empty elsewhere",
    "engine_namespace": "Kubernetes namespace of the engine; empty elsewhere",
    "model_name": "name the engine serves its model under",
    "kind": "which inference server the engine is, such as vllm; of steps: what they computed; "
    "of memory errors: corrected or uncorrected",
    "version": "version of the engine, or of disagg-node",
    "split": "how steps that prefill and decode at once are divided: model, tokens or none",
    "method": "how the engine's GPU-seconds were found",
    "worker": "name of the child process in the node file; of a router's engine elsewhere its "
    "address",
    "collector": "which reader of devices, steps or pages",
}
