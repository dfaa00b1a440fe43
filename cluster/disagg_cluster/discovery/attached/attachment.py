"""One attached engine from its first observation to its end."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from disagg_cluster.config import EngineTls
from disagg_cluster.discovery.finders.declared import worker_of_page
from disagg_cluster.discovery.observations.types import FoundEngine, Leader
from disagg_cluster.host.processes import procfs
from disagg_cluster.telemetry.engine_registry import EngineRecord, Origin, unknown_engine
from disagg_cluster.telemetry.pages.engine_tls import EngineTlsServer
from disagg_exporter.model import DynamoWorker, EngineState, Role, StepLimits
from disagg_exporter.roles.command_line.limits import step_limits
from disagg_exporter.roles.evidence.types import Confidence, Verdict

_UNDECIDED = Verdict(Role.UNKNOWN, "none", Confidence.NONE)


@dataclass(slots=True, kw_only=True)
class Attachment(EngineRecord):
    """What is known of one found engine.

    `at` is the index of the endpoint that is scraped, `paged` whether that one has returned an
    engine's page. A follower answers no requests, so its presence counts. `worker_id` is Dynamo's,
    in hex, `role_changes` how often it changed from one known role to another. `gone_ns` is set
    while the engine is absent. `started` and `limits` belong to the process and command
    `looked_at`: the Unix time at which it began, and the most that it takes into a step.
    """

    engine: FoundEngine
    verdict: Verdict = _UNDECIDED
    at: int = 0
    paged: bool = False
    gone_ns: int | None = None
    model_name: str = ""
    worker_id: str = ""
    role_changes: int = 0
    looked_at: tuple[Leader | None, tuple[str, ...]] = (None, ())
    started: float | None = None
    limits: StepLimits = field(default_factory=StepLimits)

    @property
    def endpoint_url(self) -> str:
        """The root URL of the server that is scraped; empty if none is known."""
        endpoints = self.engine.endpoints
        return endpoints[self.at % len(endpoints)].url if endpoints else ""

    @property
    def provenance(self) -> str:
        """How it was found, for the log."""
        engine = self.engine
        parts = [engine.kind or "unknown kind", f"by {', '.join(engine.seen_by)}"]
        if engine.leader is not None:
            parts.append(f"pid {engine.leader.pid}")
        return ", ".join(filter(None, (*parts, self.endpoint_url)))

    def is_other_incarnation(self, engine: FoundEngine) -> bool:
        """Return whether an engine of the same name is another incarnation, restarted since."""
        mine = (self.engine.leader, self.engine.pod_uid)
        theirs = (engine.leader, engine.pod_uid)
        return any(old and new and old != new for old, new in zip(mine, theirs, strict=True))

    def update(self, engine: FoundEngine) -> None:
        """Update where it is; the endpoint stays selected if it is still listed."""
        asked = self.endpoint_url
        self.engine = engine
        urls = [endpoint.url for endpoint in engine.endpoints]
        if asked in urls:
            self.at = urls.index(asked)
        else:
            self.at, self.paged = 0, False

    def set_answered(self, answered_ns: int | None) -> None:
        """Record when it last answered; None if it has not answered at its endpoint."""
        if answered_ns is not None:
            self.answered_ns = answered_ns
            self.ready_ns = self.ready_ns or answered_ns

    def restart(self) -> None:
        """Record that it is present again, or another incarnation of it."""
        self.gone_ns = self.answered_ns = self.ready_ns = None

    def try_next_endpoint(self) -> None:
        """Use the next endpoint after one without a page."""
        if not self.paged:
            self.at += 1

    def refresh(self, usual_tls: EngineTls, *, registering: bool) -> None:
        """Update the record to what is known now.

        Args:
            usual_tls: The configured TLS of engines that have no own setting.
            registering: Whether Dynamo's own discovery is read, so that its workers must be in it.
        """
        engine, verdict, leader = self.engine, self.verdict, self.engine.leader
        here = self.gone_ns is None
        if (leader, engine.markers.argv) != self.looked_at:
            self.looked_at = leader, engine.markers.argv
            self.started = procfs.start_timestamp_seconds(leader.pid) if leader else None
            self.limits = step_limits(engine.markers.argv)
        self.shown = here and verdict.is_engine
        self.witnessed = bool(leader or engine.pod_uid)
        self.url = self.endpoint_url if here else ""
        self.namespace, self.part = engine.namespace, engine.part
        self.tls = EngineTlsServer(
            engine.tls or usual_tls,
            engine.certificate_file or "",
            leader.pid if leader else None,
            leader.start_ticks if leader else None,
        )
        registered = engine.claimed is not None if registering else None
        self.status = replace(
            self.status,
            role=verdict.role,
            kind=engine.kind,
            model_name=self.model_name,
            devices=(engine.gpus or ()) if self.pseudo is None else (self.pseudo.gpu,),
            state=self._state(),
            source=verdict.source,
            confidence=verdict.confidence.value,
            pod=engine.pod,
            pid=leader.pid if leader else None,
            start_timestamp_seconds=self.started if here else None,
            limits=self.limits,
            dynamo=DynamoWorker(self.worker_id, registered) if self.worker_id else None,
            role_changes=self.role_changes,
            follows=engine.part.head if engine.part and engine.part.follows else None,
        )

    def _state(self) -> EngineState:
        if not self.shown:
            return EngineState.GONE
        if self.engine.draining:
            return EngineState.DRAINING
        return EngineState.STARTING if self.answered_ns is None else EngineState.READY


def attachment_of(engine: FoundEngine) -> Attachment:
    """Return the record of a newly found engine, without a verdict."""
    source, confidence = _UNDECIDED.source, _UNDECIDED.confidence.value
    status = unknown_engine(engine.name, engine.kind, source, confidence)
    return Attachment(origin=Origin.ATTACHED, status=status, engine=engine)


def worker_id_of(engine: FoundEngine, lines: tuple[str, ...]) -> str:
    """Return an engine's Dynamo worker id, in hex; empty if it has none.

    Args:
        engine: The engine as found.
        lines: The kept lines of its metrics page.
    """
    if engine.follows:
        return ""  # requests reach its leader
    claimed = engine.claimed.worker if engine.claimed else ""
    return claimed or (worker_of_page(lines) if engine.kind == "dynamo" else "")
