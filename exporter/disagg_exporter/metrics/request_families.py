"""The families of users' requests, by model, however many engines served them."""

from __future__ import annotations

from disagg_exporter.metrics.family import Data, Family

_SOURCE_LABELS = ("source", "model_name", "engine_namespace")

# One family per row: the formatter would make it eleven lines.
# fmt: off
REQUEST_FAMILIES: tuple[Family, ...] = (
    Family("disagg_request_time_to_first_token_seconds", Data.REQUESTS, _SOURCE_LABELS,
           "Users' time to first token, end to end as far as its source sees: by a frontend or "
           "router from a request's arrival there; by an engine that does prefill and decode, or "
           "is asked together with its prefill engine, from its arrival there; by pools, "
           "combined from prefill and decode engines of this node that are asked one after the "
           "other. Take one source of a model, the first of these that there is; pools and "
           "engine add up. Where the pools are on several nodes, recording rules put them "
           "together.",
           is_histogram=True),
    Family("disagg_request_duration_seconds", Data.REQUESTS, _SOURCE_LABELS,
           "From a request's arrival to its end, by the same sources.", is_histogram=True),
    Family("disagg_request_part_seconds", Data.REQUESTS,
           ("part", "model_name", "engine_namespace"),
           "The parts of waits that single engines of this node measure, where none sees the "
           "whole: from a request's arrival at a prefill engine to its token there (prefill); "
           "from its arrival at a decode engine to the first token there (first_decode) and to "
           "the last (decode).",
           is_histogram=True),
    Family("disagg_request_prompt_tokens", Data.REQUESTS, _SOURCE_LABELS,
           "Length of the prompts of requests that have ended, cached tokens included; reported "
           "by frontends, and by decode and mixed engines.", is_histogram=True),
    Family("disagg_request_output_tokens", Data.REQUESTS, _SOURCE_LABELS,
           "Length of the outputs of requests that have ended, by the same sources.",
           is_histogram=True),
    Family("disagg_request_arrivals_total", Data.REQUESTS, _SOURCE_LABELS,
           "Requests that arrived, whether they have ended or not: at a frontend or router, or "
           "at the engines where they enter, prefill and mixed ones. Those refused on arrival "
           "are not in it, unless a frontend counts them."),
    Family("disagg_request_waiting_requests", Data.REQUESTS, _SOURCE_LABELS,
           "Requests that wait at a frontend or router now, for an engine that has room: "
           "reported by Dynamo's frontend with a KV-aware router. Where replicas answer in turn, "
           "the value is that of the last one read."),
    Family("disagg_request_rejections_total", Data.REQUESTS, ("role", "reason", *_SOURCE_LABELS),
           "Requests refused on arrival, by reason, and by the role of the engines; without a role "
           "by a frontend. What a decode engine refused a prefill engine may have computed: it is "
           "in its arrivals."),
    Family("disagg_request_ends_total", Data.REQUESTS, ("reason", *_SOURCE_LABELS),
           "Requests that ended, by how: at decode and mixed engines, and those that failed at "
           "prefill engines; or by a frontend."),
    Family("disagg_node_prompt_tokens_total", Data.REQUESTS,
           ("role", "origin", "model_name", "engine_namespace"),
           "Tokens of prompts at the engines of a role, by where their KV came from: cached over "
           "cached and computed, at prefill and mixed engines, is the cache-hit rate. Of engines "
           "that report it; SGLang counts no transferred ones."),
    Family("disagg_left_out_models", Data.REQUESTS, (),
           "Models reported by engines, frontends and routers beyond the 64 whose requests are "
           "counted, and a frontend's beyond its first 64: no request family includes them."),
)
# fmt: on
