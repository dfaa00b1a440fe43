"""The families of one engine each."""

from __future__ import annotations

from disagg_exporter.metrics.families.family import Data, Family, Kind

_C, _G, _I = Kind.COUNTER, Kind.GAUGE, Kind.INFO

# One family is read as one row: the formatter would make it eleven lines.
# fmt: off
ENGINE_FAMILIES: tuple[Family, ...] = (
    Family("disagg_engine_info", _I, Data.ENGINES,
           ("engine", "role", "model_name", "kind", "version"), "",
           "What an engine is; join on engine."),
    Family("disagg_left_out_engines", _G, Data.ENGINES, (), "",
           "Engines that were found on this node beyond the 64 that one daemon attaches to: "
           "nothing else on this page is about them. Absent where none are looked for."),
    Family("disagg_engine_up", _G, Data.ENGINES, ("engine",), "",
           "1 when the engine answered its last health probe, 0 when it did not; absent for a "
           "follower, which answers nobody, and while the probe itself cannot be made."),
    Family("disagg_engine_follower_info", _I, Data.ENGINES, ("engine", "leader"), "",
           "An engine that is one node's part of an engine which is led elsewhere, and where the "
           "parts meet."),
    Family("disagg_engine_role_changes_total", _C, Data.ENGINES, ("engine",), "",
           "How often a found engine went from one known role to another; absent for one that this "
           "node launched, whose role is the node file's."),
    Family("disagg_engine_registered", _G, Data.ENGINES, ("engine",), "",
           "1 when a Dynamo worker is registered where its frontends look, 0 when it answers but "
           "is not: then no request reaches it. Absent where nobody can tell."),
    Family("disagg_engine_tls_info", _I, Data.ENGINES, ("engine", "verified", "fault"), "",
           "How an engine that speaks TLS was known at the last look at its page: ca (its "
           "certificate is signed by whom the node file names), pinned (it is the one that its own "
           "process was started with) or insecure (anybody would do); and what is wrong with its "
           "TLS, if that is why there is no page."),
    Family("disagg_engine_dynamo_worker_info", _I, Data.ENGINES,
           ("engine", "worker_id", "worker_id_decimal"), "",
           "The id of a Dynamo worker, as workers write it (hex) and as frontends do (decimal)."),
    Family("disagg_engine_watermark_timestamp_seconds", _G, Data.ENGINES, ("engine",), "seconds",
           "Unix time up to which the engine's GPU-seconds are committed; absent while nothing "
           "tells what it does."),
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
           "async scheduling it is the time that they held them; "
           "told by an older plugin, mere waits."),
    Family("disagg_engine_requests", _G, Data.ENGINES, ("engine", "role", "state"), "",
           "Requests in an engine: running, waiting for room, or deferred (waiting for something "
           "else, such as KV to arrive). From its step records; from its metrics page where it "
           "sends none."),
    Family("disagg_engine_kv_cache_usage_ratio", _G, Data.ENGINES, ("engine", "role"), "ratio",
           "Share of the engine's KV cache in use; known from where disagg_engine_requests is."),
    Family("disagg_attribution_info", _I, Data.ENGINES, ("engine", "method", "split"), "",
           "How an engine's GPU-seconds were found: steps, fpm, engine_timers, page, page_cpu, "
           "follower, role or none; and how steps that prefill and decode at once are divided now: "
           "by a cost model learned from the engine's steps, by tokens until that has earned "
           "trust, or none."),
    Family("disagg_attribution_residual_ratio", _G, Data.ENGINES, ("engine",), "ratio",
           "Mean error of the cost model's prediction of a step's length over that length: of "
           "mixed steps where there are enough, else of all."),
    Family("disagg_attribution_fitted_steps", _G, Data.ENGINES, ("engine",), "",
           "Steps the cost model has learned from; the latest hundred thousands count most."),
    Family("disagg_span_cut_seconds_total", _C, Data.ENGINES, ("engine",), "seconds",
           "Seconds of steps that fitted nowhere, even late, and are in no other counter."),
    Family("disagg_late_records_total", _C, Data.ENGINES, ("engine",), "",
           "Step records that came after their time had been committed."),
    Family("disagg_lost_records_total", _C, Data.ENGINES, ("engine",), "",
           "Step records that never came, by the gaps in their numbering."),
)
# fmt: on
