"""Assigns learned costs and limits to engines: what each inherits, and what is kept of it."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from disagg_cluster.continuity.learned_text import (
    MOST_ENGINES,
    STALE_SECONDS,
    EngineLearned,
    LearnedEntry,
    LearnedError,
    LearnedIdentity,
    StoredEntry,
    decode_entry,
    encode_entry,
)
from disagg_cluster.telemetry.source_selection import SourceSelection
from disagg_exporter.accounting import Ledger
from disagg_exporter.capacity import CapacityModel
from disagg_exporter.model import Device, EngineStatus

KEEP_EVERY_NS = 45 * 1_000_000_000
MUCH_MORE = 1.25
"""Growth of the number of learned steps at which an engine is saved at once."""
IdentityOf = Callable[[EngineStatus], LearnedIdentity | None]
"""Returns the identity of an engine's costs; None while that is not known."""


class EngineIdentities:
    """Distinguishes engines by command, model and devices.

    Args:
        devices: All devices of the node, including pseudo-devices of found engines.
        launched: The digest of the command of each of our own workers.
        command_line: The arguments of a process; empty if it cannot be seen.
        start_ticks: When a process started; guards against a reused pid.
    """

    def __init__(
        self,
        devices: Callable[[], Iterable[Device]],
        launched: Mapping[str, Callable[[], str]],
        command_line: Callable[[int], Sequence[str]],
        start_ticks: Callable[[int], int | None],
    ) -> None:
        self._devices = devices
        self._launched = launched
        self._command_line = command_line
        self._start_ticks = start_ticks
        self._digests: dict[str, tuple[tuple[int, int | None], str]] = {}

    def of(self, status: EngineStatus) -> LearnedIdentity | None:
        """Return an engine's identity; None while its model, devices or process are not known."""
        names = {device.gpu: device.gpu_name for device in self._devices()}
        if not status.model_name or not status.devices or not names.keys() >= set(status.devices):
            return None
        launched = self._launched.get(status.engine)
        if launched is not None and status.pid is None:
            return None
        if launched is None and status.page is None:
            return None
        return LearnedIdentity(
            engine=status.engine,
            kind=status.kind,
            role=status.role.value if launched is not None else "",
            model_name=status.model_name,
            gpus=status.devices,
            gpu_names=tuple(names[gpu] for gpu in status.devices),
            build=self._build_of(status, launched),
            ranks=status.page.ranks if launched is None and status.page is not None else 1,
        )

    def _build_of(self, status: EngineStatus, launched: Callable[[], str] | None) -> str:
        if status.pid is None:
            return status.version
        process = status.pid, self._start_ticks(status.pid)
        asked, digest = self._digests.get(status.engine, (None, ""))
        if asked != process:
            # A process is read once: some change their title while they run.
            digest = launched() if launched else digest_of(self._command_line(status.pid))
            self._digests.pop(status.engine, None)
            self._digests[status.engine] = process, digest
            while len(self._digests) > MOST_ENGINES:
                del self._digests[next(iter(self._digests))]
        return f"{status.version} {digest}" if launched is None else digest


def digest_of(words: Sequence[str]) -> str:
    """Return a digest of some words, as they may hold secrets."""
    return hashlib.sha256("\0".join(words).encode(errors="surrogateescape")).hexdigest()


@dataclass(frozen=True, slots=True)
class Learners:
    """The parts of the daemon that learn."""

    ledger: Ledger
    capacity_model: CapacityModel
    sourcing: SourceSelection

    def save(self, engine: str, now_ns: int) -> EngineLearned:
        """Return all that is known of an engine.

        Raises:
            ValueError: The values would not pass validation when read again.
        """
        return EngineLearned(
            tuple(sorted(self.ledger.costs(engine).items())),
            self.capacity_model.limits(engine, now_ns),
            self.sourcing.shares(engine),
        )

    def steps(self, engine: str) -> int:
        """Return how many steps and stretches an engine's costs were learned from."""
        return self.ledger.learned_steps(engine) + self.sourcing.learned_stretches(engine)

    def restore(self, engine: str, learned: EngineLearned, now_ns: int) -> None:
        """Replace what is known of an engine with what was saved."""
        self.ledger.restore_costs(engine, dict(learned.costs))
        self.capacity_model.restore_limits(engine, learned.limits, now_ns)
        self.sourcing.restore_shares(engine, learned.shares)


@dataclass(slots=True)
class _LearnedEngine:
    """An engine's identity; `here` is False while it is unknown, as another process may have begun.

    `kept_ns` is when what it taught was last kept, `kept_steps` how many steps that was.
    """

    identity: LearnedIdentity
    here: bool = True
    kept_ns: int | None = None
    kept_steps: int = 0


class LearnedModels:
    """Restores to each engine what was learned of its identity, and keeps what it teaches.

    An engine whose identity changes starts with what was learned of the new one, or with nothing.

    Args:
        learners: The parts that learn.
        identity_of: Returns an engine's identity.
        log: Logs what an engine inherits.
    """

    def __init__(self, learners: Learners, identity_of: IdentityOf, log: logging.Logger) -> None:
        self._learners = learners
        self._identity_of = identity_of
        self._log = log
        self._known: dict[str, _LearnedEngine] = {}
        self._stored: dict[LearnedIdentity, StoredEntry] = {}

    def begin(self, stored: Mapping[LearnedIdentity, StoredEntry]) -> None:
        """Load what the previous daemon left."""
        self._stored = dict(stored)

    def update(self, engines: Iterable[EngineStatus], now_ns: int, now_seconds: float) -> None:
        """Update the current engines, and let new ones inherit."""
        here = {status.engine: self._identity_of(status) for status in engines}
        for gone in self._known.keys() - here.keys():
            del self._known[gone]
        for engine, identity in here.items():
            known = self._known.get(engine)
            if identity is None:
                if known is not None:
                    known.here = False
                continue
            if known is not None and known.here and known.identity == identity:
                continue
            if known is not None and known.identity != identity:
                self._learners.restore(engine, EngineLearned(), now_ns)
            self._known[engine] = _LearnedEngine(identity)
            self._inherit(identity, now_ns, now_seconds)

    def due(self, now_ns: int) -> tuple[str, ...]:
        """Return the engines to save now: they learned much, or were saved long ago."""
        return tuple(
            engine
            for engine, known in self._known.items()
            if known.here
            and (
                known.kept_ns is None
                or now_ns - known.kept_ns >= KEEP_EVERY_NS
                or self._learners.steps(engine) > MUCH_MORE * known.kept_steps
            )
        )

    def keep_all(self, now_ns: int, now_seconds: float) -> dict[str, str]:
        """Keep what is known of all engines; return those for which that failed, and why."""
        found: dict[str, str] = {}
        for engine in self._known:
            found |= self.keep(engine, now_ns, now_seconds)
        return found

    def keep(self, engine: str, now_ns: int, now_seconds: float) -> dict[str, str]:
        """Keep what is known of an engine now; return why that failed, nothing if it did not."""
        known = self._known.get(engine)
        if known is None or not known.here:
            return {}
        known.kept_ns, known.kept_steps = now_ns, self._learners.steps(engine)
        try:
            learned = self._learners.save(engine, now_ns)
            if learned:
                entry = LearnedEntry(
                    identity=known.identity, timestamp_seconds=now_seconds, learned=learned
                )
                self._stored[known.identity] = encode_entry(entry)
                self._forget_surplus()
        except (ValueError, LearnedError) as error:
            known.kept_ns = None
            return {engine: f"{engine}: {error}"}
        return {}

    def stored(self, now_seconds: float) -> Iterator[StoredEntry]:
        """Yield what was used within the last day."""
        for identity, entry in list(self._stored.items()):
            if now_seconds - entry.timestamp_seconds > STALE_SECONDS:
                del self._stored[identity]
            else:
                yield entry

    def _forget_surplus(self) -> None:
        """Forget what was used longest ago: a file holds no more, and neither need the memory."""
        while len(self._stored) > MOST_ENGINES:
            oldest = min(self._stored, key=lambda each: self._stored[each].timestamp_seconds)
            del self._stored[oldest]

    def _inherit(self, identity: LearnedIdentity, now_ns: int, now_seconds: float) -> None:
        stored = self._stored.get(identity)
        if stored is None:
            return
        learned = decode_entry(stored).learned
        engine = identity.engine
        if self._observations(engine, now_ns) >= learned.observations:
            return
        passed_ns = round(max(now_seconds - stored.timestamp_seconds, 0.0) * 1e9)
        aged = EngineLearned(learned.costs, learned.limits.older(passed_ns), learned.shares)
        self._learners.restore(engine, aged, now_ns)
        self._log.info("%s: goes on with what %s observations taught", engine, learned.observations)

    def _observations(self, engine: str, now_ns: int) -> int:
        try:
            return self._learners.save(engine, now_ns).observations
        except ValueError:
            return 0
