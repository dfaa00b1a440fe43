"""One attached engine from its first observation to its end, and its view on the page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from disagg_cluster.discovery.finders.declared import worker_of_page
from disagg_cluster.discovery.observations.types import FoundEngine
from disagg_cluster.telemetry.pages.page_scraper import PageScraper
from disagg_cluster.telemetry.source_selection import SourceCandidate
from disagg_exporter.model import (
    Assignment,
    Device,
    DynamoWorker,
    EngineState,
    EngineStatus,
    Method,
    Role,
)
from disagg_exporter.roles.evidence.types import Confidence, Verdict

# An engine that nothing but its page tells of is gone when that has been silent for so long.
SILENT_SECONDS = 10.0

_UNDECIDED = Verdict(Role.UNKNOWN, "none", Confidence.NONE)


@dataclass(slots=True)
class Attachment:
    """What is known of one found engine.

    `at` is which of its endpoints is asked, `paged` whether that one has shown a page of an
    engine. `answered_ns` is when it answered last, `ready_ns` since when it does; a follower
    answers nobody and is taken at its being there. `worker_id` is Dynamo's, in hex,
    `role_changes` how often it went from one known role to another. `assignment`
    is what was reported to the ledger last. `gone_ns` is set while the engine is not there.
    """

    engine: FoundEngine
    verdict: Verdict = _UNDECIDED
    at: int = 0
    paged: bool = False
    answered_ns: int | None = None
    ready_ns: int | None = None
    gone_ns: int | None = None
    model_name: str = ""
    worker_id: str = ""
    role_changes: int = 0
    pseudo: Device | None = None
    assignment: Assignment | None = None

    @property
    def url(self) -> str:
        """The root of the server that is asked for its page; empty if none is known."""
        endpoints = self.engine.endpoints
        return endpoints[self.at % len(endpoints)].url if endpoints else ""

    @property
    def whence(self) -> str:
        """How it was found, for the log."""
        engine = self.engine
        parts = [engine.kind or "unknown kind", f"by {', '.join(engine.seen_by)}"]
        if engine.leader is not None:
            parts.append(f"pid {engine.leader.pid}")
        return ", ".join(filter(None, (*parts, self.url)))

    @property
    def shown(self) -> bool:
        """Whether it is there, and an engine."""
        return self.gone_ns is None and self.verdict.is_engine

    @property
    def devices(self) -> tuple[str, ...]:
        """Its devices' UUIDs, as far as they are known."""
        if self.pseudo is not None:
            return (self.pseudo.gpu,)
        return self.engine.gpus or ()

    def is_other_than(self, engine: FoundEngine) -> bool:
        """Whether an engine of the same name is another incarnation: started anew since."""
        mine = (self.engine.leader, self.engine.pod_uid)
        theirs = (engine.leader, engine.pod_uid)
        return any(old and new and old != new for old, new in zip(mine, theirs, strict=True))

    def update(self, engine: FoundEngine) -> None:
        """Take what is now known of where it is; an endpoint that showed a page is kept."""
        url = self.url
        self.engine = engine
        urls = [endpoint.url for endpoint in engine.endpoints]
        if url in urls:
            self.at = urls.index(url)
        else:
            self.at, self.paged = 0, False

    def set_answered(self, answered_ns: int | None) -> None:
        """Take when it answered last; None if it has not answered where it is asked."""
        if answered_ns is not None:
            self.answered_ns = answered_ns
            self.ready_ns = self.ready_ns or answered_ns

    def restart(self) -> None:
        """Take that it is there again, or another incarnation of it."""
        self.gone_ns = self.answered_ns = self.ready_ns = None

    def try_next_endpoint(self) -> None:
        """Its page was not where we looked: look elsewhere next time."""
        if not self.paged:
            self.at += 1

    def state(self, now_ns: int) -> EngineState:
        """Where it stands in its life."""
        if self.gone_ns is not None or not self.verdict.is_engine:
            return EngineState.GONE
        if self.engine.draining:
            return EngineState.DRAINING
        if self.answered_ns is None:
            return EngineState.STARTING
        witnessed = self.engine.leader or self.engine.pod_uid
        silent_seconds = (now_ns - self.answered_ns) / 1e9
        if not witnessed and silent_seconds > SILENT_SECONDS:
            return EngineState.GONE
        return EngineState.READY


_SERVING = (EngineState.READY, EngineState.DRAINING)


def status_of(
    attachment: Attachment, pages: PageScraper, now_ns: int, *, registering: bool
) -> EngineStatus:
    """An engine as the metrics page shows it.

    Args:
        attachment: What is known of it.
        pages: Its metrics page, among others.
        now_ns: Now.
        registering: Whether Dynamo's own discovery is read, so that its workers must be in it.
    """
    engine, verdict = attachment.engine, attachment.verdict
    name = engine.name
    page, looked = pages.page(name), pages.status(name)
    return EngineStatus(
        engine=name,
        role=verdict.role,
        kind=page.kind if page else engine.kind,
        version=pages.version(name),
        model_name=attachment.model_name,
        devices=attachment.devices,
        state=attachment.state(now_ns),
        up=engine.follows or (looked is not None and looked.success),
        source=verdict.source,
        confidence=verdict.confidence.value,
        page=page,
        pod=engine.pod,
        pid=engine.leader.pid if engine.leader else None,
        serving=pages.serving(name),
        dynamo=_dynamo(attachment, registering=registering),
        tls=pages.tls(name),
        role_changes=attachment.role_changes,
        follows=engine.part.head if engine.part and engine.part.follows else None,
    )


def source_candidate_of(
    attachment: Attachment, pages: PageScraper, now_ns: int, last_received: Mapping[Method, int]
) -> SourceCandidate:
    """An engine as the choice of its source sees it; `last_received` is of its steps, by method."""
    engine = attachment.engine
    return SourceCandidate(
        engine=engine.name,
        role=attachment.verdict.role,
        devices=attachment.devices,
        pid=engine.leader.pid if engine.leader else None,
        ready_ns=attachment.ready_ns if attachment.state(now_ns) in _SERVING else None,
        page=pages.page(engine.name),
        last_received=last_received,
        part=engine.part,
    )


def worker_id_of(engine: FoundEngine, lines: tuple[str, ...]) -> str:
    """By which id Dynamo knows an engine, in hex; empty if by none.

    Args:
        engine: Where it was found.
        lines: Those of its metrics page that were kept.
    """
    if engine.follows:
        return ""  # requests reach its leader
    claimed = engine.claimed.worker if engine.claimed else ""
    return claimed or (worker_of_page(lines) if engine.kind == "dynamo" else "")


def _dynamo(attachment: Attachment, *, registering: bool) -> DynamoWorker | None:
    if not attachment.worker_id:
        return None
    registered = attachment.engine.claimed is not None
    return DynamoWorker(attachment.worker_id, registered if registering else None)
