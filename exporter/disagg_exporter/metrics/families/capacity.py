"""The families of how full engines are, and of the limits that is measured against."""

from __future__ import annotations

from disagg_exporter.metrics.families.family import Data, Family, Kind

_G, _I = Kind.GAUGE, Kind.INFO
_NODE = ("role", "model_name", "gpu_name", "engine_namespace")

# One family is read as one row: the formatter would make it eleven lines.
# fmt: off
CAPACITY_FAMILIES: tuple[Family, ...] = (
    Family("disagg_node_capacity_used_gpus", _G, Data.NODE, _NODE, "gpus",
           "Capacity in use, in GPUs: the sum over engines whose capacity is known of the part "
           "they use times their GPUs. Divide by disagg_node_capacity_known_gpus, after summing "
           "both: 1 is a pool that is full."),
    Family("disagg_node_capacity_known_gpus", _G, Data.NODE, _NODE, "gpus",
           "GPUs of the engines whose capacity is known; absent while it is known of none."),
    Family("disagg_engine_capacity_used_ratio", _G, Data.ENGINES, ("engine", "role"), "ratio",
           "How full an engine is, over the last minute: of prefill its tokens per second over "
           "those at the knee, of decode the largest of its batch over the batch that just meets "
           "the inter-token target, its KV cache in use, and the time in which requests waited "
           "and none could be taken in. 1 is full, more is beyond. Absent until learned."),
    Family("disagg_engine_gpu_sm_ratio", _G, Data.ENGINES, ("engine", "gpu"), "ratio",
           "Share of SM time that an engine's processes took of a GPU which several engines share, "
           "as its driver sampled them in the last second: to hold against the GPU-seconds, which "
           "are halved while two have a step there. Absent on GPUs of one engine and on MIG."),
    Family("disagg_engine_prefill_knee_tokens", _G, Data.ENGINES, ("engine",), "tokens",
           "Prefill tokens of the smallest step that reaches nine tenths of the best rate; "
           "absent until smaller steps were seen, too."),
    Family("disagg_engine_prefill_knee_tokens_per_second", _G, Data.ENGINES, ("engine",), "",
           "Prefill tokens a second at the knee: nine tenths of the rate of all larger steps."),
    Family("disagg_engine_decode_target_batch", _G, Data.ENGINES, ("engine",), "",
           "Requests decoding at once with which a token takes as long as the inter-token target "
           "allows."),
    Family("disagg_engine_bound_info", _I, Data.ENGINES, ("engine", "bound"), "",
           "What keeps an engine from doing more: compute, bandwidth (of its memory), kv (room in "
           "its cache), host (time between its steps), none (it has room) or unknown."),
    Family("disagg_engine_model_flops_ratio", _G, Data.ENGINES, ("engine", "role"), "ratio",
           "MFU: operations of the model's matrices for the tokens of the last minute, over the "
           "peak of its GPUs. A lower bound, attention is not in it. Absent unless model and GPU "
           "are known."),
    Family("disagg_engine_model_bandwidth_ratio", _G, Data.ENGINES, ("engine", "role"), "ratio",
           "MBU: bytes that the steps of the last minute had to read (all weights each, and the KV "
           "cache in use each decode step) over the peak of the memory of its GPUs. Absent unless "
           "model, GPU and size of the cache are known."),
    Family("disagg_engine_peak_flops_per_second", _G, Data.ENGINES, ("engine",), "",
           "Dense BF16 operations a second of all GPUs of an engine, by their data sheets: what "
           "disagg_engine_model_flops_ratio was divided by."),
    Family("disagg_engine_peak_bytes_per_second", _G, Data.ENGINES, ("engine",), "",
           "Memory bytes a second of all GPUs of an engine, by their data sheets: what "
           "disagg_engine_model_bandwidth_ratio was divided by."),
    Family("disagg_engine_capacity_info", _I, Data.ENGINES,
           ("engine", "phase", "source", "confidence"), "",
           "How a phase's limit of an engine is known: from its steps or from its page, and from "
           "loads on both_sides of the limit or on one_side alone; unreachable where not even one "
           "request would meet the inter-token target."),
)
# fmt: on
