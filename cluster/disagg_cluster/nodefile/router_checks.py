"""What is wrong with the router of a node file, seen beside its workers."""

from __future__ import annotations

from collections.abc import Iterator

from disagg_cluster.config import Router, Worker
from disagg_cluster.config.problems import Finding
from disagg_cluster.config.router import ROUTER_NAME
from disagg_cluster.launch.router_command import OWN_ARGUMENTS
from disagg_cluster.nodefile.draft import Draft
from disagg_cluster.nodefile.worker_checks import Host, own_arguments
from disagg_exporter.model import Role

_AT = ("router",)
_NEEDS_TWO = "power_of_two"


def check_router(draft: Draft, host: Host) -> Iterator[Finding]:
    """Everything wrong between the router and its engines."""
    router = draft.config.router
    if router is None or not draft.sure("router"):
        return
    if draft.sure("router", "args"):
        yield from own_arguments(router.args, OWN_ARGUMENTS, (*_AT, "args"))
    if draft.sure("router", "python") and not host.executable(router.python):
        hint = "give the interpreter of the environment that holds vllm-router"
        yield Finding((*_AT, "python"), f"{router.python} cannot be run here", hint)
    yield from _elsewhere(draft, router)
    for position, worker in draft.workers:
        if worker.name == ROUTER_NAME and draft.sure("workers", position, "name"):
            message = f"{ROUTER_NAME!r} is what the router itself is called"
            yield Finding(("workers", position, "name"), message)
    known = ("name", "engine", "role", "model", "served_model_name", "kv_transfer")
    whole = draft.complete and all(
        draft.sure("workers", position, key) for position, _ in draft.workers for key in known
    )
    if whole:
        yield from _engines(draft, router)


def _elsewhere(draft: Draft, router: Router) -> Iterator[Finding]:
    """Engines elsewhere that are named twice, or that are workers of this file."""
    taken = {
        worker.url: f"{worker.name} (workers[{position}])"
        for position, worker in draft.workers
        if draft.sure("workers", position)
    }
    for key, urls in (("prefill", router.prefill), ("decode", router.decode)):
        for number, url in enumerate(urls):
            place = f"router.{key}[{number}]"
            if (other := taken.setdefault(url, place)) != place:
                hint = "each engine is named once, and the workers of this file not at all"
                yield Finding((*_AT, key, number), f"{url} is already {other}", hint)


def _engines(draft: Draft, router: Router) -> Iterator[Finding]:
    routed = [(place, w) for place, w in draft.workers if w.role in (Role.PREFILL, Role.DECODE)]
    for role, elsewhere in ((Role.PREFILL, router.prefill), (Role.DECODE, router.decode)):
        here = [worker for _, worker in routed if worker.role is role]
        count = len(here) + len(elsewhere)
        if not count:
            hint = f"add a {role} worker, or name one elsewhere with router.{role}"
            yield Finding(_AT, f"the router has no {role} engine", hint)
        elif count == 1 and router.policy == _NEEDS_TWO:
            hint = "with one there is nothing to choose; use round_robin"
            yield Finding((*_AT, "policy"), f"{_NEEDS_TWO} needs two {role} engines", hint)
    models = dict.fromkeys(worker.model_name for _, worker in routed)
    if len(models) > 1:
        hint = "it sends each request to any of them; give them one served_model_name"
        yield Finding(_AT, f"its engines serve different models: {', '.join(models)}", hint)
    for place, worker in routed:
        yield from _engine(router, place, worker)


def _engine(router: Router, place: int, worker: Worker) -> Iterator[Finding]:
    if worker.engine == "sglang":
        hint = "leave the router out, and use SGLang's own"
        path = ("workers", place, "engine")
        yield Finding(path, f"{router.engine} cannot speak to an sglang engine", hint)
    kv = worker.kv_transfer
    if kv is None or worker.engine != "vllm" or kv.speaks(router.kv_connector):
        return
    other = "mooncake" if router.kv_connector == "nixl" else "nixl"
    if kv.speaks(other):
        message = f"{worker.name} moves its KV by {kv.connector}"
        yield Finding((*_AT, "kv_connector"), message, f"use {other}")
