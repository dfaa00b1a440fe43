"""Every exported metric family: name, type, labels, unit, meaning and source.

The modules imported here are the only place that may define a metric name. `cluster`, `node`,
`instance`, `job`, `pod` and `namespace` are never labels: the first four belong to the scraper,
which would overwrite the last two. Only the planner, which is not a node, sets `node` for others.
"""

from __future__ import annotations

from disagg_exporter.metrics.engine_families import ENGINE_FAMILIES
from disagg_exporter.metrics.family import Family
from disagg_exporter.metrics.node_families import DAEMON_FAMILIES, NODE_FAMILIES
from disagg_exporter.metrics.planner_families import PLANNER_FAMILIES
from disagg_exporter.metrics.request_families import REQUEST_FAMILIES

FAMILIES: tuple[Family, ...] = (
    *NODE_FAMILIES,
    *ENGINE_FAMILIES,
    *REQUEST_FAMILIES,
    *PLANNER_FAMILIES,
    *DAEMON_FAMILIES,
)

LABELS: dict[str, str] = {
    "currency": "a three-letter currency code, such as USD",
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
    "half or more), sync_boost or other (clocks set by a user, and what drivers add); of KV "
    "transfers transfer, notification, receive, bootstrap or expired; of what the pages refused "
    "displaced (the longest-running one, as places were short), no_thread, timeout, too_large, "
    "malformed or tls; of requests that ended stop, length, abort, error, other, or success where "
    "stop and length are not distinguished; of those refused queued_requests or queued_tokens (an "
    "engine's limit of either) or overload; of what the planner leaves undecided a word of "
    "docs/planner.md, of a diagnosis missing_evidence or unexplained",
    "component": "stage of a request before its first token: queue, prefill, kv_transfer or "
    "first_decode",
    "clock": "what the length of a step means: engine_wait (of the engine core for the model), "
    "schedule_to_update (wall clock) or cuda_span (of the forward on one stream)",
    "unit": "part of the device: graphics (anything at all ran), sm (multiprocessors busy), tensor "
    "(their tensor cores, any format), dram (memory bandwidth, of its peak)",
    "state": "state of the requests, or of the worker",
    "queue": "what requests wait for: bootstrap, inflight, prealloc or transfer",
    "source": "where the role is known from; of a capacity limit: steps or page; of requests, best "
    "first: frontend, router, engine, or pools (put together from prefill and decode engines); of "
    "a move's cost: measured or assumed",
    "part": "part of a wait: prefill, first_decode (to the first token of a decode engine) or "
    "decode (to its last)",
    "origin": "where the KV of a prompt's tokens came from: computed, cached or transferred",
    "confidence": "how sure the role is; of an attribution, how sure the phases' shares are: high, "
    "medium, low or none; of a capacity limit: both_sides (smaller and larger loads than the limit "
    "were seen), one_side, or unreachable (no batch meets the target)",
    "engine_pod": "Kubernetes pod of the engine; empty elsewhere",
    "engine_namespace": "Kubernetes namespace of the engine; empty elsewhere",
    "model_name": "name the engine serves its model under",
    "kind": "which inference server the engine is, such as vllm; of steps: what they computed; "
    "of memory errors: corrected or uncorrected; of planned GPUs: current, needed or recommended",
    "version": "version of the engine, or of disagg-node",
    "split": "how steps that prefill and decode at once are divided: model, unsure (by the model, "
    "but with doubt), tokens or none; of planned pools: actual, or shadow, the hypothetical one",
    "point": "work of a step: tokens of a prompt, requests that decode, or both; or empty",
    "effect": "what a mixture of prefill and decode does to its step: loss or gain of time",
    "step_tokens": "prefill tokens of a step",
    "batch": "requests that decode in a step",
    "method": "how the engine's GPU-seconds were found; of a device's energy power or time",
    "verified": "how the engine's identity was verified; empty if not scraped over TLS",
    "fault": "what is wrong with its TLS; empty if nothing is",
    "leader": "rendezvous address of an engine on several nodes, by its options; empty if unknown",
    "sensor": "what a temperature is of: gpu or memory",
    "link": "what a device is connected by: pcie or nvlink",
    "direction": "direction of bytes relative to the device: sent or received",
    "xid": "NVIDIA's number of an error; other beyond 32 different ones",
    "bound": "what limits an engine: compute, bandwidth, kv, host, none, unknown",
    "node": "name of an engine's node, as its own series have it from the scrape; set only by the "
    "planner, for the engines in its verdicts",
    "cause": "what holds first tokens back, a word of docs/diagnosis.md",
    "action": "what to do: route_away, set_max_num_batched_tokens, set_max_num_seqs, move_worker, "
    "replace_gpu, merge_pools or none",
    "worker": "name of the child process in the node file; of a router's engine elsewhere its "
    "address",
    "verb": "request to the daemon: pause, resume, restart, status, or unknown",
    "outcome": "result: done, accepted, refused, failed, timeout, invalid (not understood), denied "
    "(of a user who may not ask), busy (too many at a time); of failures passed to the hook: "
    "delivered, failed or dropped",
    "worker_id": "id of a Dynamo worker in hex, as its own metrics have it",
    "worker_id_decimal": "the same id in decimal, as the frontend's metrics have it",
    "horizon": "how far ahead, such as 5m, 1h or 24h; empty for now",
    "quantile": "probability that the load stays below, such as 0.95; empty for now",
    "verdict": "prefill-heavy, decode-heavy, balanced or shifting",
    "mode": "what the planner does about roles of engines: off, advise or act",
    "to_role": "role that an engine should change to",
    "collector": "which collector of devices, steps or pages; which part of the planner's round",
}
