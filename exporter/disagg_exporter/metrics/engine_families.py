"""The families of engines: facts and GPU-seconds, capacity, requests and KV transfers."""

from __future__ import annotations

from disagg_exporter.metrics.family import Data, Family

_POOL = ("role", "model_name", "gpu_name", "engine_namespace")

# One family per row: the formatter would make it eleven lines.
# fmt: off
ENGINE_FAMILIES: tuple[Family, ...] = (
    Family("disagg_engine_info", Data.ENGINES, ("engine", "role", "model_name", "kind", "version"),
           "What an engine is; join on engine."),
    Family("disagg_left_out_engines", Data.ENGINES, (),
           "Engines that were found on this node beyond the 64 that one daemon attaches to: "
           "nothing else on this page is about them. Absent where none are searched for."),
    Family("disagg_engine_up", Data.ENGINES, ("engine",),
           "1 when the engine answered its last health probe or, if this node did not launch it, "
           "its metrics page was read, 0 when not; absent for a follower, which serves no "
           "requests, and while the probe itself cannot be made."),
    Family("disagg_engine_follower_info", Data.ENGINES, ("engine", "leader"),
           "An engine that is one node's part of an engine led from another node, with the "
           "address at which the parts meet."),
    Family("disagg_engine_role_changes_total", Data.ENGINES, ("engine",),
           "How often a found engine went from one known role to another; absent for one that this "
           "node launched, whose role is the node file's."),
    Family("disagg_engine_start_timestamp_seconds", Data.ENGINES, ("engine",),
           "Unix time at which the engine's process began, however it was started; absent where it "
           "cannot be seen from here, and while there is none."),
    Family("disagg_engine_registered", Data.ENGINES, ("engine",),
           "1 when a Dynamo worker is registered where its frontends look, 0 when it answers but "
           "is not: then no request reaches it. Absent where that is unknown."),
    Family("disagg_engine_tls_info", Data.ENGINES, ("engine", "verified", "fault"),
           "How an engine that speaks TLS was verified at the last scrape of its page: ca (its "
           "certificate is signed by the CA in the node file), pinned (its certificate is the "
           "one its own process was started with) or insecure (not verified); and the TLS fault, "
           "if that is why there is no page."),
    Family("disagg_engine_dynamo_worker_info", Data.ENGINES,
           ("engine", "worker_id", "worker_id_decimal"),
           "The id of a Dynamo worker, as workers write it (hex) and as frontends do (decimal)."),
    Family("disagg_engine_watermark_timestamp_seconds", Data.ENGINES, ("engine",),
           "Unix time up to which the engine's GPU-seconds are committed; absent while no source "
           "reports its work."),
    Family("disagg_engine_unreported_step_seconds", Data.ENGINES, ("engine",),
           "How long a step has run, or been awaited since a request arrived, without a record "
           "so far: the engine's time waits for it, so minutes here explain a watermark that "
           "lags. 0 while it idles; absent for an engine that reports no single steps."),
    Family("disagg_engine_gpu_seconds_total", Data.ENGINES, ("engine", "role", "phase"),
           "GPU-seconds an engine used: an engine on four devices uses four a second."),
    Family("disagg_engine_phase_tokens_total", Data.ENGINES, ("engine", "role", "phase"),
           "Tokens an engine computed; cached and transferred tokens are not in it. Absent, not 0, "
           "for a phase whose tokens its source does not report."),
    Family("disagg_engine_steps_total", Data.ENGINES, ("engine", "role", "kind"),
           "Steps the engine says it took: context, generation, mixed or dummy; absent for one "
           "that reports no single steps."),
    Family("disagg_engine_step_seconds_total", Data.ENGINES, ("engine", "role", "kind"),
           "Seconds the engine says its steps took, on each of its devices. Of an engine with "
           "async scheduling it is the time that they held them; "
           "reported by an older plugin, waits only."),
    Family("disagg_engine_expected_step_seconds_total", Data.ENGINES, ("engine", "role", "kind"),
           "Seconds that steps were expected to take: by the engine's own cost model as it was "
           "before each, at the pace of its last hours of step time (half an hour after a slowdown "
           "8 % of it are in that). Of steps from the 301st on; absent before."),
    Family("disagg_engine_compared_step_seconds_total", Data.ENGINES, ("engine", "role", "kind"),
           "Seconds that these same steps took. Divide its increase by that of the seconds "
           "expected: 1 is an engine as it was, 2 one that takes twice as long for the same work."),
    Family("disagg_engine_requests", Data.ENGINES, ("engine", "role", "state"),
           "Requests in an engine: running, waiting for room, or deferred (waiting for something "
           "else, such as KV to arrive). From its step records; from its metrics page where it "
           "sends none."),
    Family("disagg_engine_kv_queue_requests", Data.ENGINES, ("engine", "role", "queue"),
           "Requests in the queues of disaggregation, those of state waiting or deferred by what "
           "they wait for. Of SGLang's prefill engines: bootstrap (for the decode engine to "
           "answer) and inflight (for KV to leave); of its decode engines: prealloc (for room for "
           "their KV) and transfer (for KV to arrive). Of vLLM's: transfer."),
    Family("disagg_engine_kv_cache_usage_ratio", Data.ENGINES, ("engine", "role"),
           "Share of the engine's KV cache in use; from the same source as "
           "disagg_engine_requests."),
    Family("disagg_attribution_info", Data.ENGINES, ("engine", "method", "split", "confidence"),
           "How an engine's GPU-seconds were found: steps, fpm, engine_timers, page, page_cpu, "
           "follower, role or none; and how steps that prefill and decode at once are divided now: "
           "by a cost model learned from the engine's steps; by the same, unsure, while prefill's "
           "share of its time may be more than 5 points off; by tokens until the model foresees "
           "steps; or none; and how sure the phases' shares are."),
    Family("disagg_attribution_share_error_ratio", Data.ENGINES, ("engine",),
           "How far prefill's share of the engine's step time may be off where its cost model "
           "divides mixed steps: the true share is within that nine times in ten. 0 for one that "
           "does not mix."),
    Family("disagg_attribution_residual_ratio", Data.ENGINES, ("engine",),
           "Mean error of the cost model's prediction of a step's length over that length: of "
           "mixed steps where there are enough, else of all."),
    Family("disagg_attribution_fitted_steps", Data.ENGINES, ("engine",),
           "Steps the cost model has learned from; the latest hundred thousands count most."),
    Family("disagg_engine_step_cost_seconds", Data.ENGINES, ("engine", "point"),
           "What a step costs now, as learned: for a prompt of so many tokens, beside so many "
           "requests that decode, at recent context lengths; point is empty for a step without "
           "work. Absent beyond twice the tokens of any observed step."),
    Family("disagg_engine_step_cost_error_seconds", Data.ENGINES, ("engine", "point"),
           "How far disagg_engine_step_cost_seconds may be off: the true cost is within that "
           "nine times in ten."),
    Family("disagg_engine_interference_seconds_total", Data.ENGINES, ("engine", "effect"),
           "Seconds by which mixed steps took longer (loss), or shorter (gain), than their prefill "
           "and decode would have taken in steps of their own, the engine's constant share counted "
           "once. Loss less gain is what separating the phases would give back. Absent while it is "
           "not known."),
    Family("disagg_engine_interference_step_seconds_total", Data.ENGINES, ("engine",),
           "Seconds of all steps, mixed or not, while what mixing costs and saves was known: what "
           "loss less gain is a part of."),
    Family("disagg_engine_interference_error_ratio", Data.ENGINES, ("engine",),
           "How far loss less gain may be off, over the step time of which it is known: the true "
           "value is within that nine times in ten."),
    Family("disagg_span_cut_seconds_total", Data.ENGINES, ("engine",),
           "Seconds of steps that could not be placed in time, even late; they are in no other "
           "counter."),
    Family("disagg_late_records_total", Data.ENGINES, ("engine",),
           "Step records that arrived after their time had been committed."),
    Family("disagg_lost_records_total", Data.ENGINES, ("engine",),
           "Step records that never arrived, by the gaps in their numbering."),

    # Capacity in use, and the limits that it is measured against.
    Family("disagg_node_capacity_used_gpus", Data.NODE, _POOL,
           "Capacity in use, in GPUs: the sum over engines whose capacity is known of the part "
           "they use times their GPUs. Divide by disagg_node_capacity_known_gpus, after summing "
           "both: 1 is a pool that is full."),
    Family("disagg_node_capacity_known_gpus", Data.NODE, _POOL,
           "GPUs of the engines whose capacity is known; absent while it is known of none."),
    Family("disagg_engine_capacity_used_ratio", Data.ENGINES, ("engine", "role"),
           "How full an engine is, over the last minute: of prefill its tokens per second over "
           "those at the knee, of decode the largest of its batch over the batch that just meets "
           "the inter-token target, its KV cache in use, and the time in which requests waited "
           "and none could be taken in. 1 is full, more is beyond. Absent until learned."),
    Family("disagg_engine_gpu_sm_ratio", Data.ENGINES, ("engine", "gpu"),
           "Share of SM time that an engine's processes took of a GPU which several engines "
           "share, as its driver sampled them in the last second: for comparison with the "
           "GPU-seconds, which are halved while two engines have a step there. Absent on GPUs of "
           "one engine and on MIG."),
    Family("disagg_engine_max_num_batched_tokens", Data.ENGINES, ("engine",),
           "Tokens that an engine, or each of its data-parallel ranks, takes into a step at "
           "most: as reported by our plugin, else by its command line (SGLang: "
           "chunked-prefill-size)."),
    Family("disagg_engine_max_num_seqs", Data.ENGINES, ("engine",),
           "Requests that it takes into a step at most, known likewise (SGLang: "
           "max-running-requests)."),
    Family("disagg_engine_prefill_knee_tokens", Data.ENGINES, ("engine",),
           "Prefill tokens of the smallest step that reaches nine tenths of the best rate; "
           "absent until smaller steps were seen, too."),
    Family("disagg_engine_prefill_knee_tokens_per_second", Data.ENGINES, ("engine",),
           "Prefill tokens a second at the knee: nine tenths of the rate of all larger steps."),
    Family("disagg_engine_decode_target_batch", Data.ENGINES, ("engine",),
           "Requests decoding at once with which a token takes as long as the inter-token target "
           "allows."),
    Family("disagg_engine_prefill_curve_tokens_per_second", Data.ENGINES,
           ("engine", "step_tokens"),
           "Prefill tokens a second in steps of so many, within what was seen: the curve that the "
           "knee is read off."),
    Family("disagg_engine_decode_curve_seconds", Data.ENGINES, ("engine", "batch"),
           "Time from one token to the next with so many requests decoding, within what was seen: "
           "the curve that the target batch is read off."),
    Family("disagg_engine_bound_info", Data.ENGINES, ("engine", "bound"),
           "What keeps an engine from doing more: compute, bandwidth (of its memory), kv (room in "
           "its cache), host (time between its steps), none (it has room) or unknown."),
    Family("disagg_engine_model_flops_ratio", Data.ENGINES, ("engine", "role"),
           "MFU: operations of the model's matrices for the tokens of the last minute, over the "
           "peak of its GPUs. A lower bound, attention is not in it. Absent unless model and GPU "
           "are known."),
    Family("disagg_engine_model_bandwidth_ratio", Data.ENGINES, ("engine", "role"),
           "MBU: bytes that the steps of the last minute had to read (all weights each, and the KV "
           "cache in use each decode step) over the peak of the memory of its GPUs. Absent unless "
           "model, GPU and size of the cache are known."),
    Family("disagg_engine_peak_flops_per_second", Data.ENGINES, ("engine",),
           "Dense BF16 operations a second of all GPUs of an engine, by their data sheets: what "
           "disagg_engine_model_flops_ratio was divided by."),
    Family("disagg_engine_peak_bytes_per_second", Data.ENGINES, ("engine",),
           "Memory bytes a second of all GPUs of an engine, by their data sheets: what "
           "disagg_engine_model_bandwidth_ratio was divided by."),
    Family("disagg_engine_capacity_info", Data.ENGINES, ("engine", "phase", "source", "confidence"),
           "How a phase's limit of an engine is known: from its steps or from its page, and from "
           "loads on both_sides of the limit or on one_side alone; unreachable where not even one "
           "request would meet the inter-token target."),

    # What engines report of their requests and KV transfers.
    Family("disagg_engine_time_to_first_token_seconds", Data.ENGINES, ("engine", "role"),
           "Time from a request's arrival at an engine to its first token there. Of decode and "
           "mixed engines only: the one token that a prefill engine makes is not the user's.",
           is_histogram=True),
    Family("disagg_engine_prefill_time_to_first_token_seconds", Data.ENGINES, ("engine", "role"),
           "Time from a request's arrival at a prefill engine to the one token that it makes: "
           "waiting and prompt, before any transfer. Not the user's first token.",
           is_histogram=True),
    Family("disagg_engine_inter_token_latency_seconds", Data.ENGINES, ("engine", "role"),
           "Time between two tokens of a request. Of decode and mixed engines only.",
           is_histogram=True),
    Family("disagg_engine_ttft_component_seconds_total", Data.ENGINES,
           ("engine", "role", "component"),
           "Seconds that requests spent in a stage before their first token. The stages of one "
           "engine do not overlap. KV that must arrive before a decode engine can begin is waited "
           "for in its queue."),
    Family("disagg_engine_ttft_component_requests_total", Data.ENGINES,
           ("engine", "role", "component"),
           "Requests that went through such a stage."),
    Family("disagg_engine_finished_requests_total", Data.ENGINES, ("engine", "role"),
           "Requests an engine has finished, however they ended."),
    Family("disagg_engine_ends_total", Data.ENGINES, ("engine", "role", "reason"),
           "Requests an engine has finished, by how they ended. Each request of a prefill engine "
           "ends there, too, mostly by length."),
    Family("disagg_engine_arrivals_total", Data.ENGINES, ("engine", "role"),
           "Requests an engine has accepted: the highest sum observed so far of those it has "
           "finished and those inside. A burst that came and went between two scrapes of its "
           "page is included."),
    Family("disagg_engine_rejections_total", Data.ENGINES, ("engine", "role", "reason"),
           "Requests an engine refused on arrival; they are in no other of its numbers."),
    Family("disagg_engine_prompt_tokens_total", Data.ENGINES, ("engine", "role", "origin"),
           "Tokens of prompts, by where their KV came from."),
    Family("disagg_engine_request_prompt_tokens", Data.ENGINES, ("engine", "role"),
           "Length of the prompts of requests that an engine has finished, cached tokens included. "
           "Of prefill and mixed engines; disagg_request_prompt_tokens has all of a model's.",
           is_histogram=True),
    Family("disagg_engine_preemptions_total", Data.ENGINES, ("engine", "role"),
           "Requests that lost their place for want of KV cache and had to be computed again."),
    Family("disagg_engine_kv_transfers_total", Data.ENGINES, ("engine", "role"),
           "KV transfers, counted either by the engine that pulls or by the one that sends."),
    Family("disagg_engine_kv_transfer_seconds_total", Data.ENGINES, ("engine", "role"),
           "Seconds that KV transfers took; they overlap in time."),
    Family("disagg_engine_kv_transfer_bytes_total", Data.ENGINES, ("engine", "role"),
           "Bytes of KV that were transferred."),
    Family("disagg_engine_kv_transfer_failures_total", Data.ENGINES, ("engine", "role", "reason"),
           "KV transfers that failed. Expired is KV that was held and never fetched: the prefill "
           "engine counts it."),
    Family("disagg_engine_kv_cache_tokens", Data.ENGINES, ("engine",),
           "Tokens that the KV cache of an engine can hold, over all its data-parallel ranks."),
    Family("disagg_engine_asleep", Data.ENGINES, ("engine",),
           "1 while an engine sleeps (its memory is given back, it is no idle capacity), else 0."),
    Family("disagg_engine_version_known", Data.ENGINES, ("engine",),
           "1 when the metrics page of this version of the engine is one we have read, 0 when it "
           "is another: what is read from it may then mean something else. Absent until the "
           "engine has reported its version."),
    Family("disagg_engine_step_clock_info", Data.ENGINES, ("engine", "clock"),
           "What an engine means by the length of a step."),
)
# fmt: on
