"""The families of what engines say of their requests: how long they took, what moved for them."""

from __future__ import annotations

from disagg_exporter.metrics.families.family import Data, Family, Kind

_C, _G, _H, _I = Kind.COUNTER, Kind.GAUGE, Kind.HISTOGRAM, Kind.INFO

# One family is read as one row: the formatter would make it eleven lines.
# fmt: off
LATENCY_FAMILIES: tuple[Family, ...] = (
    Family("disagg_engine_time_to_first_token_seconds", _H, Data.ENGINES, ("engine", "role"),
           "seconds",
           "Time from a request's arrival at an engine to its first token there. Of decode and "
           "mixed engines only: the one token that a prefill engine makes is not the user's."),
    Family("disagg_engine_inter_token_latency_seconds", _H, Data.ENGINES, ("engine", "role"),
           "seconds",
           "Time between two tokens of a request. Of decode and mixed engines only."),
    Family("disagg_engine_ttft_component_seconds_total", _C, Data.ENGINES,
           ("engine", "role", "component"), "seconds",
           "Seconds that requests spent in a stage before their first token. The stages of one "
           "engine do not overlap. KV that must arrive before a decode engine can begin is waited "
           "for in its queue."),
    Family("disagg_engine_ttft_component_requests_total", _C, Data.ENGINES,
           ("engine", "role", "component"), "",
           "Requests that went through such a stage."),
    Family("disagg_engine_finished_requests_total", _C, Data.ENGINES, ("engine", "role"), "",
           "Requests an engine has finished, however they ended."),
    Family("disagg_engine_preemptions_total", _C, Data.ENGINES, ("engine", "role"), "",
           "Requests that lost their place for want of KV cache and had to be computed again."),
    Family("disagg_engine_kv_transfers_total", _C, Data.ENGINES, ("engine", "role"), "",
           "KV transfers that an engine counts: the one that pulls does, or the one that sends."),
    Family("disagg_engine_kv_transfer_seconds_total", _C, Data.ENGINES, ("engine", "role"),
           "seconds",
           "Seconds that KV transfers took; they overlap in time."),
    Family("disagg_engine_kv_transfer_bytes_total", _C, Data.ENGINES, ("engine", "role"), "bytes",
           "Bytes of KV that were transferred."),
    Family("disagg_engine_kv_transfer_failures_total", _C, Data.ENGINES,
           ("engine", "role", "reason"), "",
           "KV transfers that failed. Expired is KV that was held and never fetched: the prefill "
           "engine counts it."),
    Family("disagg_engine_kv_cache_tokens", _G, Data.ENGINES, ("engine",), "tokens",
           "Tokens that the KV cache of an engine can hold, over all its data-parallel ranks."),
    Family("disagg_engine_asleep", _G, Data.ENGINES, ("engine",), "",
           "1 while an engine sleeps (its memory is given back, it is no idle capacity), else 0."),
    Family("disagg_engine_version_known", _G, Data.ENGINES, ("engine",), "",
           "1 when the metrics page of this version of the engine is one we have read, 0 when it "
           "is another: what is read from it may then mean something else. Absent until the "
           "engine has told its version."),
    Family("disagg_engine_step_clock_info", _I, Data.ENGINES, ("engine", "clock"), "",
           "What an engine means by the length of a step."),
)
# fmt: on
