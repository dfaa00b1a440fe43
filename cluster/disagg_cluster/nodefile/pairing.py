"""Whether the two halves of a model can hand KV to each other: same engine, same transport."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from disagg_cluster.config import Worker
from disagg_cluster.config.problems import Finding, YamlPath
from disagg_cluster.launch.sglang_command import transfer_backend
from disagg_cluster.nodefile.draft import Draft
from disagg_exporter.model import Role

_KEYS = ("role", "engine", "model", "served_model_name", "kv_transfer")
# Longer names first, as they hold the shorter ones.
_TRANSPORTS = (
    *("nixlpush", "nixl", "mooncakestore", "mooncake", "moriio", "p2pnccl", "lmcache"),
    *("flexkv", "hf3fs"),
)


@dataclass(frozen=True, slots=True)
class _Means:
    """By what an engine hands KV over; no transports where we cannot know."""

    engine: str
    transports: frozenset[str]

    def fits(self, other: _Means) -> bool:
        if self.engine != other.engine:
            return False
        known = bool(self.transports and other.transports)
        return not known or bool(self.transports & other.transports)


@dataclass(slots=True)
class _Halves:
    """The workers of one model: the first place of each means, by role."""

    firsts: dict[Role, dict[_Means, int]] = field(
        default_factory=lambda: {Role.PREFILL: {}, Role.DECODE: {}}
    )


def check_pairs(draft: Draft, *, all_meet: bool) -> Iterator[Finding]:
    """Engines of one model that cannot hand KV to those of its other half.

    Args:
        draft: The file.
        all_meet: Each prefill engine meets each decode engine, as behind a router; otherwise it
            is enough that each has one that it fits.
    """
    models: dict[str, _Halves] = {}
    workers: dict[int, tuple[Worker, _Means]] = {}
    for place, worker in draft.workers:
        sure = all(draft.sure("workers", place, key) for key in _KEYS)
        if worker.role not in (Role.PREFILL, Role.DECODE) or worker.engine == "standin":
            continue
        if not sure or worker.kv_transfer is None:
            return  # what is missing may be the half that fits
        means = _Means(worker.engine, _transports(worker))
        workers[place] = (worker, means)
        halves = models.setdefault(worker.model_name, _Halves())
        halves.firsts[worker.role].setdefault(means, place)
    for model, halves in models.items():
        found = list(_misfits(workers, halves, Role.DECODE, all_meet=all_meet))
        found = found or list(_misfits(workers, halves, Role.PREFILL, all_meet=all_meet))
        for place, other in found:
            yield _told(model, place, workers[place], other, workers[other])


def _misfits(
    workers: dict[int, tuple[Worker, _Means]], halves: _Halves, role: Role, *, all_meet: bool
) -> Iterator[tuple[int, int]]:
    """The places of one half, first of each means, with one of the other half that misfits."""
    other = Role.PREFILL if role is Role.DECODE else Role.DECODE
    for means, place in halves.firsts[role].items():
        misfits = [first for peer, first in halves.firsts[other].items() if not means.fits(peer)]
        if misfits and (all_meet or len(misfits) == len(halves.firsts[other])):
            yield place, misfits[0]


def _told(
    model: str,
    place: int,
    of: tuple[Worker, _Means],
    other_place: int,
    other: tuple[Worker, _Means],
) -> Finding:
    worker, means = of
    peer, peer_means = other
    at: YamlPath = ("workers", place)
    there = f"{peer.name} (workers[{other_place}])"
    if means.engine != peer_means.engine:
        message = (
            f"{worker.name} is a {worker.role} worker of {means.engine}, {there}, its other half "
            f"for {model}, of {peer_means.engine}"
        )
        return Finding((*at, "engine"), message, "both halves of a model need the same engine")
    assert worker.kv_transfer is not None
    assert peer.kv_transfer is not None
    message = (
        f"{worker.name} moves its KV by {worker.kv_transfer.connector}, {there}, its other half "
        f"for {model}, by {peer.kv_transfer.connector}"
    )
    hint = "both halves of a model need the same connector"
    return Finding((*at, "kv_transfer", "connector"), message, hint)


def _transports(worker: Worker) -> frozenset[str]:
    kv = worker.kv_transfer
    assert kv is not None
    if worker.engine == "sglang":
        backend = transfer_backend(kv.connector)
        return frozenset() if backend is None else frozenset((backend,))
    # A connector that wraps others names them in its extra configuration.
    text = f"{kv.connector} {kv.extra_config}".lower()
    found = set()
    for name in _TRANSPORTS:
        if name in text:
            found.add(name)
            text = text.replace(name, "")
    return frozenset(found)
