"""The families of devices, of the sums over the node, and of the daemon itself."""

from __future__ import annotations

from disagg_exporter.metrics.family import Data, Family

_NODE = ("model_name", "gpu_name", "engine_namespace")

# One family per row: the formatter would make it eleven lines.
# fmt: off
NODE_FAMILIES: tuple[Family, ...] = (
    Family("disagg_gpu_info", Data.DEVICES, ("gpu", "index", "gpu_name", "pci_bus_id", "device"),
           "What a device is; join on gpu."),
    Family("disagg_gpu_assignment_info", Data.DEVICES,
           ("gpu", "engine", "role", "source", "confidence", "engine_pod", "engine_namespace"),
           "Which engine a device serves and in which role, how that is known and how surely."),
    Family("disagg_gpu_memory_used_bytes", Data.DEVICES, ("gpu",),
           "Device memory in use, by all processes."),
    Family("disagg_gpu_memory_total_bytes", Data.DEVICES, ("gpu",), "Device memory there is."),
    Family("disagg_gpu_power_watts", Data.DEVICES, ("gpu",), "Power drawn at the latest reading."),
    Family("disagg_gpu_sm_clock_hertz", Data.DEVICES, ("gpu",),
           "Clock of the streaming multiprocessors at the latest reading."),
    Family("disagg_gpu_power_limit_watts", Data.DEVICES, ("gpu",),
           "Power that the driver holds the device to. Absent on MIG instances."),
    Family("disagg_gpu_temperature_celsius", Data.DEVICES, ("gpu", "sensor"),
           "Temperature of a sensor, gpu or memory, at the latest reading, at most a second old; a "
           "MIG instance's is that of its GPU. Absent where there is no such sensor."),
    Family("disagg_gpu_link_bytes_total", Data.DEVICES, ("gpu", "link", "direction"),
           "Bytes that a device sent and received over PCIe and NVLink, headers included, added up "
           "from the mean rates that it reports (performance counters of Hopper and later, or "
           "dcgm-exporter) since this daemon watches it. Absent elsewhere and on MIG instances."),
    Family("disagg_gpu_utilization_ratio", Data.DEVICES, ("gpu",),
           "The share of the time before the latest reading in which at least one kernel ran: "
           "since the reading before by the device's performance counters, else the driver's own "
           "figure for its last sample period. It says busy, not full: one small kernel that never "
           "ends shows 1. It is one sample, not an average between scrapes; take shares of time "
           "from the seconds counters."),
    Family("disagg_gpu_foreign_sm_ratio", Data.DEVICES, ("gpu",),
           "Share of SM time that processes of no engine of this node took, as the driver "
           "sampled them in the last second; 0 where there are none. Absent where processes are "
           "not reported (dcgm-exporter, MIG) or an engine's own are not among them (another PID "
           "namespace)."),
    Family("disagg_gpu_foreign_memory_bytes", Data.DEVICES, ("gpu",),
           "Device memory that these processes hold; 0 where there are none."),
    Family("disagg_gpu_ecc_errors_total", Data.DEVICES, ("gpu", "kind"),
           "Memory errors in the device's whole life, as its driver counts them; absent without "
           "ECC and on MIG instances."),
    Family("disagg_gpu_xid_errors_total", Data.DEVICES, ("gpu", "xid"),
           "Errors of a GPU by NVIDIA's Xid number, since it is watched; those that end or harm "
           "its work (48, 74, 79, 94, 95) stand at 0 from the start. Absent where the driver "
           "reports no events."),
    Family("disagg_gpu_phase_seconds_total", Data.ACCOUNTS, ("gpu", "role", "phase"),
           "Seconds of a device by what it did and the role it had then, committed up to its "
           "watermark. phase is prefill, decode, idle or unattributed; with the unobserved seconds "
           "they sum to the device's weight times (watermark - start)."),
    Family("disagg_gpu_idle_seconds_total", Data.ACCOUNTS, ("gpu", "reason"),
           "Idle seconds of a device by reason; the reasons sum to its idle seconds."),
    Family("disagg_gpu_unattributed_seconds_total", Data.ACCOUNTS, ("gpu", "reason"),
           "Seconds a device was busy without work reported by an engine, by reason; a lower "
           "bound."),
    Family("disagg_gpu_unobserved_seconds_total", Data.ACCOUNTS, ("gpu", "reason"),
           "Seconds of which nothing is known, by reason: neither engine nor device reported."),
    Family("disagg_gpu_watermark_timestamp_seconds", Data.ACCOUNTS, ("gpu",),
           "Unix time up to which a device's seconds are committed."),
    Family("disagg_gpu_start_timestamp_seconds", Data.ACCOUNTS, ("gpu",),
           "Unix time at which the accounting of a device began."),
    Family("disagg_gpu_activity_seconds_total", Data.ACCOUNTS, ("gpu", "role", "unit"),
           "Activity of a part of the device, integrated over time and weighted like its seconds, "
           "by the role it had then: divided by wall seconds it is the mean activity. Counted as "
           "read, without waiting for the watermark; a unit the device never reported is absent."),
    Family("disagg_gpu_throttle_seconds_total", Data.ACCOUNTS, ("gpu", "reason"),
           "Seconds in which a reason held the device's clocks back, as read. Several may hold at "
           "once; the low clocks of an idle device are no throttling."),
    Family("disagg_gpu_phase_energy_joules_total", Data.ACCOUNTS, ("gpu", "role", "phase"),
           "Energy of a device by what its time went to, committed up to its watermark; phase may "
           "also be unobserved, and all of them sum to the energy reported by the device. Absent "
           "where it reports none, as MIG instances do."),
    Family("disagg_gpu_energy_split_info", Data.ACCOUNTS, ("gpu", "method"),
           "How a device's energy is divided now: by the power that each use of it was seen to "
           "draw, or by time until that has earned trust. Absent where no energy is reported."),
    Family("disagg_gpu_phase_power_watts", Data.ACCOUNTS, ("gpu", "phase"),
           "Power that a device draws in a phase, or idle between them, learned from its own "
           "energy over the last hour; absent until that has earned trust."),

    # Sums over the node: cluster roll-ups use these, never the devices.
    Family("disagg_node_phase_seconds_total", Data.NODE, ("role", "phase", *_NODE),
           "The sum of this node's device seconds by what they were; take cluster ratios from "
           "these."),
    Family("disagg_node_idle_seconds_total", Data.NODE, ("role", "reason", *_NODE),
           "The sum of this node's idle device seconds by reason."),
    Family("disagg_node_unobserved_seconds_total", Data.NODE, ("reason", "gpu_name"),
           "The sum of this node's device seconds of which nothing is known, by reason."),
    Family("disagg_node_activity_seconds_total", Data.NODE, ("role", "unit", *_NODE),
           "The sum of this node's device activity by part of the device."),
    Family("disagg_node_activity_gpu_seconds_total", Data.NODE, ("role", "unit", *_NODE),
           "GPU-seconds over which the activity of a unit was read: divide "
           "disagg_node_activity_seconds_total by it, so that devices and times of which no "
           "activity is read do not distort it."),
    Family("disagg_node_energy_joules_total", Data.NODE, ("role", "phase", *_NODE),
           "The sum of this node's device energy by what the time went to; of the devices that "
           "report it."),
    Family("disagg_node_energy_gpu_seconds_total", Data.NODE, ("role", "phase", *_NODE),
           "GPU-seconds in which the joules of disagg_node_energy_joules_total were used: divide "
           "by them for mean watts, so that devices that report no energy, such as MIG "
           "instances, do not distort it. Absent until a device's energy total has moved."),
    Family("disagg_node_phase_tokens_total", Data.NODE,
           ("role", "phase", "model_name", "engine_namespace"),
           "The sum of this node's tokens computed, including engines that are gone; cached and "
           "transferred tokens are not in it."),
    Family("disagg_node_token_gpu_seconds_total", Data.NODE,
           ("role", "phase", "model_name", "engine_namespace"),
           "GPU-seconds in a phase of the engines whose tokens are in "
           "disagg_node_phase_tokens_total, and of their followers, whose leaders report them: "
           "divide one by the other, so that engines that report no tokens do not distort it. 0 "
           "on a node where none does."),
    Family("disagg_node_role_gpus", Data.NODE, ("role", "gpu_name"),
           "Devices that have this role now, in whole GPUs (a MIG slice counts as its share)."),
    Family("disagg_node_busy_gpus", Data.NODE, ("role", "phase", *_NODE),
           "Devices' worth of work in the last disagg_node_busy_window_seconds. Fast and "
           "provisional; the seconds counters are the record."),
    Family("disagg_node_busy_window_seconds", Data.NODE, (),
           "The length of the window of disagg_node_busy_gpus, which ends now."),
    Family("disagg_node_gpu_hour_price", Data.NODE, ("currency",),
           "What one GPU of this node costs for an hour, as the node file says; absent where it "
           "does not."),
)

DAEMON_FAMILIES: tuple[Family, ...] = (
    Family("disagg_router_requests_total", Data.ROUTER, (),
           "Requests the router has answered, failed ones included."),
    Family("disagg_router_prefill_errors_total", Data.ROUTER, ("worker",),
           "Requests that failed at a prefill engine, as the router saw it."),
    Family("disagg_router_decode_errors_total", Data.ROUTER, ("worker",),
           "Requests that failed at a decode engine, as the router saw it."),
    Family("disagg_router_active_requests", Data.ROUTER, ("phase",),
           "Requests the router has at engines of a phase, waiting there or running."),
    Family("disagg_router_pending_requests", Data.ROUTER, (),
           "Requests whose decode engine is chosen and waits for their prefill to end."),
    Family("disagg_router_worker_health", Data.ROUTER, ("worker",),
           "1 while the router holds an engine well and sends it requests, 0 while it does not."),
    Family("disagg_worker_state", Data.WORKERS, ("worker", "state"),
           "1 for the state a worker is in, 0 for the others."),
    Family("disagg_worker_restarts_total", Data.WORKERS, ("worker",),
           "How often a worker was started again."),
    Family("disagg_worker_paused", Data.WORKERS, ("worker",),
           "1 while a worker is paused by hand: observed, never killed and never started; else 0."),
    Family("disagg_worker_drained", Data.WORKERS, ("worker",),
           "1 while a worker is drained by hand: it runs on, gets no new requests and counts in no "
           "pool; else 0."),
    Family("disagg_worker_start_timestamp_seconds", Data.WORKERS, ("worker",),
           "Unix time at which the running process of a worker began; absent while none runs."),
    Family("disagg_worker_next_start_timestamp_seconds", Data.WORKERS, ("worker",),
           "Unix time at which a worker that crashed or was given up is started next; absent while "
           "no start is planned."),
    Family("disagg_control_requests_total", Data.WORKERS, ("verb", "outcome"),
           "Requests to this daemon by hand. What takes time is counted when it is accepted and "
           "when it has ended; a request that was not understood or not let in has verb unknown."),
    Family("disagg_control_refusals_total", Data.WORKERS, ("reason",),
           "Requests to this daemon by hand that were not granted, by what spoke against them; "
           "docs/control.md says what each reason means."),
    Family("disagg_reassign_moves_total", Data.WORKERS, ("worker", "outcome"),
           "Reassignments of a worker to another role that have ended, by how: done, rolled_back "
           "(it serves in its old role) or failed."),
    Family("disagg_reassign_unproven_total", Data.WORKERS, ("worker",),
           "Reassignments after which the phase of the new role used no GPU-seconds in time, "
           "regardless of what the engine answered; they are rolled back."),
    Family("disagg_reassign_drain_seconds", Data.WORKERS, ("worker", "role"),
           "How long the last reassignment of a worker, to this role, waited for its last request "
           "to end; absent until one has come so far."),
    Family("disagg_reassign_downtime_seconds", Data.WORKERS, ("worker", "role"),
           "How long the GPUs of the last reassigned worker served no requests: from its last "
           "request until it got requests in the new role."),
    Family("disagg_reassign_effect_seconds", Data.WORKERS, ("worker", "role"),
           "How long after that the phase of its new role had used GPU-seconds: only then is a "
           "reassignment done."),
    Family("disagg_failure_hook_events_total", Data.WORKERS, ("outcome",),
           "Failures of workers that were delivered to on_worker_failure, could not be delivered, "
           "or were dropped because too many newer ones came; absent without it."),
    Family("disagg_collector_success", Data.COLLECTORS, ("collector",),
           "1 when the collector's last round succeeded, 0 when it failed."),
    Family("disagg_collector_duration_seconds", Data.COLLECTORS, ("collector",),
           "How long the collector's last round took."),
    Family("disagg_collector_last_success_timestamp_seconds", Data.COLLECTORS, ("collector",),
           "Unix time of the collector's last success; absent until it has had one."),
    Family("disagg_collector_unexpected_failures_total", Data.COLLECTORS, ("collector",),
           "Rounds that failed of a defect of this program, by kind of collector (`engine` sums "
           "over all engines): please report it."),
    Family("disagg_http_refusals_total", Data.HTTP, ("reason",),
           "Connections and requests that the daemon's own pages refused, by reason."),
    Family("disagg_run_folder_restores_total", Data.WORKERS, (),
           "How often the run folder, or its lock, journal or a folder in it, was found removed or "
           "replaced and was recreated."),
    Family("process_cpu_seconds_total", Data.PROCESS, (),
           "CPU time that this daemon has used; engines and their plugin are not in it."),
    Family("process_virtual_memory_bytes", Data.PROCESS, (), "Its virtual memory."),
    Family("process_resident_memory_bytes", Data.PROCESS, (), "Its resident memory."),
    Family("process_start_time_seconds", Data.PROCESS, (), "Unix time at which it began."),
    Family("process_open_fds", Data.PROCESS, (), "File descriptors it has open."),
    Family("process_max_fds", Data.PROCESS, (), "File descriptors it may have open."),
    Family("disagg_build_info", Data.BUILD, ("version",), "Which disagg-node this is."),
    Family("disagg_simulated_info", Data.BUILD, (),
           "There only when devices or engines are simulated: nothing on the page is then a "
           "measurement."),
)
# fmt: on
