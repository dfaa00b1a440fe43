"""The found engines as the ledger and the page know them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import count

from disagg_cluster.config import EngineTls
from disagg_cluster.config.tls import UNSPECIFIED_TLS
from disagg_cluster.discovery.attached.attachment import (
    Attachment,
    source_candidate_of,
    status_of,
    worker_id_of,
)
from disagg_cluster.discovery.observations.role_resolver import Candidate
from disagg_cluster.discovery.observations.types import MAX_ENGINES, FoundEngine
from disagg_cluster.telemetry.pages.engine_tls import EngineTlsServer
from disagg_cluster.telemetry.pages.label_values import LabelValues
from disagg_cluster.telemetry.pages.page_scraper import PageScraper
from disagg_cluster.telemetry.source_selection import SourceCandidate
from disagg_cluster.telemetry.steps.step_source import StepSource
from disagg_exporter.accounting import Ledger
from disagg_exporter.devices.source import pseudo_device
from disagg_exporter.engine_pages.adapters import page_path
from disagg_exporter.model import (
    Assignment,
    Device,
    EngineState,
    EngineStatus,
)
from disagg_exporter.roles.evidence.types import Verdict

# Its counters stay on the page so long after an engine has gone: for the last scrape, and for an
# engine that is merely started again.
LINGER_SECONDS = 60.0

MAX_MODEL_NAME = 128
MAX_WORKER_ID = 16
OTHER_MODEL = "other"
"""What the models of an engine are counted as that has had too many names for them of late."""

_log = logging.getLogger("disagg_node")


class AttachedEngines:
    """Turns what discovery finds into the ledger's assignments and the page's statuses.

    Args:
        ledger: Receives every change.
        gpus: The GPUs of this node; without any, each engine gets a pseudo-device.
        steps: Where the engines' steps are received.
        registering: Whether Dynamo's own discovery is read, so that its workers must be in it.
        tls: What a person said of engines that serve TLS and of which they said nothing else.
        first_index: A number from which on pseudo-devices are free.
        clock_ns: CLOCK_MONOTONIC.
    """

    def __init__(
        self,
        ledger: Ledger,
        gpus: Sequence[Device],
        steps: StepSource,
        *,
        registering: bool = False,
        tls: EngineTls = UNSPECIFIED_TLS,
        first_index: int = 0,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._ledger = ledger
        self._gpus = frozenset(device.gpu for device in gpus)
        self._steps = steps
        self._registering = registering
        self._tls = tls
        self._first_index = first_index
        self._clock_ns = clock_ns
        self._by_name: dict[str, Attachment] = {}
        self._models = LabelValues(MAX_MODEL_NAME)
        self._worker_ids = LabelValues(MAX_WORKER_ID)
        self._left_out = 0

    @property
    def urls(self) -> Mapping[str, str]:
        """The roots of the engines' servers now."""
        return {name: a.url for name, a in self._by_name.items() if self.has_url(name)}

    def has_url(self, name: str) -> bool:
        """Whether an engine is there and its server known; may be asked on any thread."""
        found = self._by_name.get(name)
        return found is not None and found.gone_ns is None and bool(found.url)

    @property
    def devices(self) -> tuple[Device, ...]:
        """The pseudo-devices of the engines."""
        return tuple(a.pseudo for a in self._by_name.values() if a.pseudo is not None)

    @property
    def left_out(self) -> int:
        """How many engines found no room."""
        return self._left_out

    @property
    def lost(self) -> str:
        """Which engines found no room; empty if all did."""
        if not self._left_out:
            return ""
        return f"{self._left_out} engines more than {MAX_ENGINES} were found and are left out"

    def tls_server(self, name: str) -> EngineTlsServer:
        """What is known of the TLS that an engine serves."""
        found = self._by_name.get(name)
        if found is None:
            return EngineTlsServer()
        engine, leader = found.engine, found.engine.leader
        return EngineTlsServer(
            engine.tls or self._tls,
            engine.certificate_file or "",
            leader.pid if leader else None,
            leader.start_ticks if leader else None,
        )

    def page_path(self, name: str) -> str:
        """Where on its server an engine's metrics page is."""
        found = self._by_name.get(name)
        return page_path(found.engine.kind if found else "")

    def engines(self) -> tuple[FoundEngine, ...]:
        """The engines that are there."""
        return tuple(a.engine for a in self._by_name.values() if a.gone_ns is None)

    def update(self, found: Sequence[FoundEngine]) -> None:
        """Take which engines there are now; those that are not among them have gone."""
        now_ns = self._clock_ns()
        known = [engine for engine in found if engine.name in self._by_name]
        new = [engine for engine in found if engine.name not in self._by_name]
        room = max(0, MAX_ENGINES - len(known))
        left_out, self._left_out = self._left_out, len(new) - len(new[:room])
        if self._left_out > left_out:
            _log.warning("%s", self.lost)
        for name in self._by_name.keys() - {engine.name for engine in known}:
            self._mark_gone(name, now_ns)
        for engine in (*known, *new[:room]):
            self._add_or_update(engine, now_ns)
        self._forget_the_gone(now_ns)

    def candidates(self, pages: PageScraper) -> tuple[Candidate, ...]:
        """What is to be judged of each engine that is there."""
        return tuple(
            Candidate(name, a.engine.markers, pages.lines(name), a.model_name, a.engine.role)
            for name, a in self._by_name.items()
            if a.gone_ns is None
        )

    def settle(self, verdicts: Mapping[str, Verdict], pages: PageScraper) -> None:
        """Take what the engines are for, and how their pages stand."""
        now_ns = self._clock_ns()
        for name, attachment in self._by_name.items():
            if attachment.gone_ns is not None:
                continue
            if name in verdicts:
                self._change_role(attachment, verdicts[name])
            page, part = pages.page(name), attachment.engine.part
            model_name = attachment.model_name
            if page is not None:
                attachment.paged = True
                model_name = page.model_name or ""
            elif part is not None and part.follows:
                model_name = part.model_name
            elif pages.status(name) is not None:
                attachment.try_next_endpoint()
            known = self._models.label(name, model_name, now_ns)
            attachment.model_name = OTHER_MODEL if known is None else known
            worker_id = worker_id_of(attachment.engine, pages.lines(name))
            attachment.worker_id = self._worker_ids.label(name, worker_id, now_ns) or ""
            attachment.set_answered(pages.answered_ns(name))
            self._assign(attachment, attachment.state(now_ns), now_ns)
        for model_name in self._models.forget_unused(now_ns):
            self._ledger.forget_model(model_name)

    def statuses(self, pages: PageScraper) -> tuple[EngineStatus, ...]:
        """Return every engine that is there as the page shows it."""
        now_ns = self._clock_ns()
        return tuple(
            status_of(a, pages, now_ns, registering=self._registering)
            for a in self._by_name.values()
            if a.shown
        )

    def source_candidates(self, pages: PageScraper) -> tuple[SourceCandidate, ...]:
        """Return every engine as the choice of its source sees it."""
        now_ns = self._clock_ns()
        return tuple(
            source_candidate_of(a, pages, now_ns, self._steps.last_received(name))
            for name, a in self._by_name.items()
            if a.shown
        )

    def verdict(self, name: str) -> Verdict:
        """What an engine is for, and why."""
        return self._by_name[name].verdict

    def _add_or_update(self, engine: FoundEngine, now_ns: int) -> None:
        attachment = self._by_name.get(engine.name)
        if attachment is None:
            attachment = self._by_name[engine.name] = Attachment(engine)
            _log.info("%s: found (%s)", engine.name, attachment.whence)
        elif attachment.gone_ns is not None or attachment.is_other_than(engine):
            self._mark_gone(engine.name, now_ns)
            _log.info("%s: engine restarted", engine.name)
            attachment.restart()
        attachment.update(engine)
        if engine.follows:
            attachment.set_answered(now_ns)
        if not self._gpus and attachment.pseudo is None:
            attachment.pseudo = pseudo_device(engine.name, self._free_index())
            self._ledger.add_device(attachment.pseudo, now_ns)
        self._assign(attachment, attachment.state(now_ns), now_ns)

    def _mark_gone(self, name: str, now_ns: int) -> None:
        attachment = self._by_name[name]
        if attachment.gone_ns is None:
            self._steps.drain(name)
            attachment.gone_ns = now_ns
            _log.info("%s: engine disappeared", name)
            self._assign(attachment, EngineState.GONE, now_ns)
            self._steps.forget(name)

    def _forget_the_gone(self, now_ns: int) -> None:
        gone = [(a.gone_ns, name) for name, a in self._by_name.items() if a.gone_ns is not None]
        too_many = len(self._by_name) - 2 * MAX_ENGINES
        for number, (gone_ns, name) in enumerate(sorted(gone)):
            if number < too_many or now_ns - gone_ns >= LINGER_SECONDS * 1e9:
                self._ledger.forget(name)
                del self._by_name[name]

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

    def _assign(self, attachment: Attachment, state: EngineState, now_ns: int) -> None:
        """Tell the ledger where an engine stands, if that has changed."""
        before, engine = attachment.assignment, attachment.engine
        now = Assignment(
            engine=engine.name,
            role=attachment.verdict.role,
            devices=attachment.devices,
            state=state,
            since_ns=now_ns if before is None else before.since_ns,
            pids=() if engine.leader is None else (engine.leader.pid,),
            model_name=attachment.model_name,
            engine_namespace=engine.namespace,
        )
        if now == before or (before is None and state is EngineState.GONE):
            return
        attachment.assignment = replace(now, since_ns=now_ns)
        self._ledger.assign(attachment.assignment)

    def _free_index(self) -> int:
        used = {device.index for device in self.devices}
        return next(n for n in count(self._first_index) if n not in used)
