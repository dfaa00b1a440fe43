"""Attached engines: converts what discovery finds into records of the registry."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import count

from disagg_cluster.config import EngineTls
from disagg_cluster.config.tls import UNSPECIFIED_TLS
from disagg_cluster.discovery.attached.attachment import Attachment, attachment_of, worker_id_of
from disagg_cluster.discovery.observations.role_resolver import Candidate
from disagg_cluster.discovery.observations.types import MAX_ENGINES, FoundEngine
from disagg_cluster.telemetry.engine_registry import LINGER_SECONDS, EngineRegistry
from disagg_cluster.telemetry.pages.label_values import LabelValues
from disagg_exporter.accounting import Ledger
from disagg_exporter.devices.source import pseudo_device
from disagg_exporter.model import Device
from disagg_exporter.model.counted import agreeing, counted
from disagg_exporter.roles.evidence.types import Verdict

MAX_MODEL_NAME = 128
MAX_WORKER_ID = 16
OTHER_MODEL = "other"
"""Model name that stands for all others of an engine that recently had too many."""

_log = logging.getLogger("disagg_node")


class AttachedEngines:
    """Converts what discovery finds into records of the registry.

    Args:
        registry: Receives the records; each change is reported to the ledger.
        ledger: Receives pseudo-devices, and which engines and models are to be forgotten.
        gpus: The GPUs of this node; without any, each engine gets a pseudo-device.
        registering: Whether Dynamo's own discovery is read, so that its workers must be in it.
        tls: The configured TLS of engines that have no own setting.
        first_index: The first free number for pseudo-devices.
        clock_ns: CLOCK_MONOTONIC.
    """

    def __init__(
        self,
        registry: EngineRegistry,
        ledger: Ledger,
        gpus: Sequence[Device],
        *,
        registering: bool = False,
        tls: EngineTls = UNSPECIFIED_TLS,
        first_index: int = 0,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._registry = registry
        self._ledger = ledger
        self._gpus = frozenset(device.gpu for device in gpus)
        self._registering = registering
        self._tls = tls
        self._first_index = first_index
        self._clock_ns = clock_ns
        self._by_name: dict[str, Attachment] = {}
        self._models = LabelValues(MAX_MODEL_NAME)
        self._worker_ids = LabelValues(MAX_WORKER_ID)
        registry.left_out = 0

    @property
    def lost(self) -> str:
        """How many engines exceeded the limit; empty if none did."""
        left_out = self._registry.left_out
        if not left_out:
            return ""
        were, are = agreeing(left_out, "was", "were"), agreeing(left_out, "is", "are")
        engines = counted(left_out, "engine")
        return f"{engines} more than {MAX_ENGINES} {were} found and {are} left out"

    def engines(self) -> tuple[FoundEngine, ...]:
        """Return the current engines."""
        return tuple(a.engine for a in self._by_name.values() if a.gone_ns is None)

    def update(self, found: Sequence[FoundEngine]) -> None:
        """Update the current engines; those that are not listed are gone."""
        now_ns = self._clock_ns()
        known = [engine for engine in found if engine.name in self._by_name]
        new = [engine for engine in found if engine.name not in self._by_name]
        room = max(0, MAX_ENGINES - len(known))
        before, left_out = self._registry.left_out or 0, max(0, len(new) - room)
        self._registry.left_out = left_out
        if left_out > before:
            _log.warning("%s", self.lost)
        for name in self._by_name.keys() - {engine.name for engine in known}:
            self._mark_gone(name, now_ns)
        for engine in (*known, *new[:room]):
            self._add_or_update(engine, now_ns)
        self._forget_gone(now_ns)

    def candidates(self) -> tuple[Candidate, ...]:
        """Return what is needed to judge each current engine."""
        pages = self._registry.pages
        return tuple(
            Candidate(name, a.engine.markers, pages.state(name).lines, a.model_name, a.engine.role)
            for name, a in self._by_name.items()
            if a.gone_ns is None
        )

    def settle(self, verdicts: Mapping[str, Verdict]) -> None:
        """Update the engines' roles, and their state by their pages."""
        now_ns, pages = self._clock_ns(), self._registry.pages
        for name, attachment in self._by_name.items():
            if attachment.gone_ns is not None:
                continue
            if name in verdicts:
                self._change_role(attachment, verdicts[name])
            known, part = pages.state(name), attachment.engine.part
            model_name = attachment.model_name
            if known.page is not None:
                attachment.paged = True
                model_name = known.page.model_name or ""
            elif part is not None and part.follows:
                model_name = part.model_name
            elif known.status is not None:
                attachment.try_next_endpoint()
            label = self._models.label(name, model_name, now_ns)
            attachment.model_name = OTHER_MODEL if label is None else label
            worker_id = worker_id_of(attachment.engine, known.lines)
            attachment.worker_id = self._worker_ids.label(name, worker_id, now_ns) or ""
            attachment.set_answered(known.answered_ns)
            self._report(attachment, now_ns)
        for model_name in self._models.forget_unused(now_ns):
            self._ledger.forget_model(model_name)

    def verdict(self, name: str) -> Verdict:
        """Return an engine's verdict and its reasons."""
        return self._by_name[name].verdict

    def _add_or_update(self, engine: FoundEngine, now_ns: int) -> None:
        attachment = self._by_name.get(engine.name)
        if attachment is None:
            attachment = attachment_of(engine)
            self._by_name[engine.name] = self._registry.records[engine.name] = attachment
            _log.info("%s: found (%s)", engine.name, attachment.provenance)
        elif attachment.gone_ns is not None or attachment.is_other_incarnation(engine):
            self._mark_gone(engine.name, now_ns)
            _log.info("%s: engine restarted", engine.name)
            attachment.restart()
        attachment.update(engine)
        if engine.follows:
            attachment.set_answered(now_ns)
        if not self._gpus and attachment.pseudo is None:
            attachment.pseudo = pseudo_device(engine.name, self._free_index())
            self._ledger.add_device(attachment.pseudo, now_ns)
        self._report(attachment, now_ns)

    def _mark_gone(self, name: str, now_ns: int) -> None:
        attachment = self._by_name[name]
        if attachment.gone_ns is None:
            self._registry.sources.drain(name)
            attachment.gone_ns = now_ns
            _log.info("%s: engine disappeared", name)
            self._report(attachment, now_ns)
            self._registry.sources.forget(name)

    def _forget_gone(self, now_ns: int) -> None:
        gone = [(a.gone_ns, name) for name, a in self._by_name.items() if a.gone_ns is not None]
        too_many = len(self._by_name) - 2 * MAX_ENGINES
        for number, (gone_ns, name) in enumerate(sorted(gone)):
            if number < too_many or now_ns - gone_ns >= LINGER_SECONDS * 1e9:
                del self._by_name[name]
                self._registry.forget(name)

    def _change_role(self, attachment: Attachment, verdict: Verdict) -> None:
        old, attachment.verdict = attachment.verdict, verdict
        if (old.answer, old.confidence) != (verdict.answer, verdict.confidence):
            evidence = verdict.evidence
            why = f"{evidence[0].marker} is {evidence[0].value}" if evidence else "no marker"
            how = f"{verdict.source}, {verdict.confidence}"
            name, was = attachment.engine.name, ""
            if old.is_definite and verdict.is_definite and old.role is not verdict.role:
                attachment.role_changes += 1
                was = f", no longer {old.role}"
            _log.info("%s: role %s%s (%s: %s)", name, verdict.answer, was, how, why)

    def _report(self, attachment: Attachment, now_ns: int) -> None:
        attachment.refresh(self._tls, registering=self._registering)
        self._registry.assign(attachment, now_ns)

    def _free_index(self) -> int:
        used = {device.index for device in self._registry.devices()}
        return next(n for n in count(self._first_index) if n not in used)
