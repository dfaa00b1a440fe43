"""What an attached engine looks like to those who show it and to those who choose its source."""

from __future__ import annotations

from collections.abc import Mapping

from disagg_cluster.discovery.attached.attachment import Attachment
from disagg_cluster.discovery.finders.dynamo_files import worker_of_page
from disagg_cluster.discovery.sightings.types import FoundEngine
from disagg_cluster.telemetry.pages.page_scraper import PageWatch
from disagg_cluster.telemetry.source_selection import Subject
from disagg_exporter.model import DynamoWorker, EngineState, EngineStatus, Method

_SERVING = (EngineState.READY, EngineState.DRAINING)


def status_of(
    attachment: Attachment, pages: PageWatch, now_ns: int, *, registering: bool
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


def subject_of(
    attachment: Attachment, pages: PageWatch, now_ns: int, heard: Mapping[Method, int]
) -> Subject:
    """An engine as the choice of its source sees it; `heard` is when its steps were heard last."""
    engine = attachment.engine
    return Subject(
        engine=engine.name,
        role=attachment.verdict.role,
        devices=attachment.devices,
        pid=engine.leader.pid if engine.leader else None,
        ready_ns=attachment.ready_ns if attachment.state(now_ns) in _SERVING else None,
        page=pages.page(engine.name),
        heard=heard,
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
