"""The families of what the daemon looks after: router, workers, collectors, itself."""

from __future__ import annotations

from disagg_exporter.metrics.families.family import Data, Family, Kind

_C, _G, _I = Kind.COUNTER, Kind.GAUGE, Kind.INFO

# One family is read as one row: the formatter would make it eleven lines.
# fmt: off
DAEMON_FAMILIES: tuple[Family, ...] = (
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
    Family("disagg_worker_paused", _G, Data.WORKERS, ("worker",), "",
           "1 while a worker is paused by hand: observed, never killed and never started; else 0."),
    Family("disagg_worker_start_timestamp_seconds", _G, Data.WORKERS, ("worker",), "seconds",
           "Unix time at which the running process of a worker began; absent while none runs."),
    Family("disagg_worker_next_start_timestamp_seconds", _G, Data.WORKERS, ("worker",), "seconds",
           "Unix time at which a worker that crashed or was given up is started next; absent while "
           "no start is planned."),
    Family("disagg_control_requests_total", _C, Data.WORKERS, ("verb", "outcome"), "",
           "Requests to this daemon by hand. What takes time is counted when it is accepted and "
           "when it has ended; a request that was not understood or not let in has verb unknown."),
    Family("disagg_failure_hook_events_total", _C, Data.WORKERS, ("outcome",), "",
           "Failures of workers that on_worker_failure was told of, could not be told of, or "
           "was not told of because too many newer ones came; absent without it."),
    Family("disagg_collector_success", _G, Data.COLLECTORS, ("collector",), "",
           "1 when the collector's last round succeeded, 0 when it failed."),
    Family("disagg_collector_duration_seconds", _G, Data.COLLECTORS, ("collector",), "seconds",
           "How long the collector's last round took."),
    Family("disagg_collector_last_success_timestamp_seconds", _G, Data.COLLECTORS,
           ("collector",), "seconds",
           "Unix time of the collector's last success; absent until it has had one."),
    Family("disagg_collector_unexpected_failures_total", _C, Data.COLLECTORS, ("collector",), "",
           "Rounds that failed of a defect of this program, by kind of collector (`engine` sums "
           "over all engines): please report it."),
    Family("disagg_http_refusals_total", _C, Data.HTTP, ("reason",), "",
           "Connections and requests that the daemon's own pages turned away, by reason."),
    Family("disagg_run_folder_restores_total", _C, Data.WORKERS, (), "",
           "How often the run folder, or its lock, journal or a folder in it, was found removed or "
           "replaced and was made anew."),
    Family("disagg_build_info", _I, Data.BUILD, ("version",), "",
           "Which disagg-node this is."),
    Family("disagg_simulated_info", _I, Data.BUILD, (), "",
           "There only when devices or engines are simulated: nothing on the page is then a "
           "measurement."),
)
# fmt: on
