"""The protocol of receivers of single engine steps, and a composite of several."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Generic, Protocol, TypeVar

from disagg_exporter.collectors import CollectorHealth
from disagg_exporter.model import CollectorStatus, Method
from disagg_exporter.steps.messages import StepEvent, StepRecords


class StepSource(Protocol):
    """Receives the steps of engines, by engine name, in one way."""

    def last_received(self, name: str) -> Mapping[Method, int]:
        """When steps of an engine were last received; empty if none are."""

    def drain(self, name: str) -> None:
        """Ingest an engine's waiting steps: called before its end is accounted."""

    def forget(self, name: str) -> None:
        """Forget an engine that has disappeared."""

    def collectors(self) -> tuple[CollectorStatus, ...]:
        """The status of receiving."""

    def close(self) -> None:
        """Stop receiving."""


class StepSources:
    """Several sources as one."""

    def __init__(self, *sources: StepSource) -> None:
        self._sources = list(sources)

    def add(self, *sources: StepSource) -> None:
        """Receive through these, too."""
        self._sources += sources

    def last_received(self, name: str) -> Mapping[Method, int]:
        """When steps of an engine were last received, by each source that has any."""
        received: dict[Method, int] = {}
        for source in self._sources:
            received |= source.last_received(name)
        return received

    def drain(self, name: str) -> None:
        """Ingest an engine's waiting steps."""
        for source in self._sources:
            source.drain(name)

    def forget(self, name: str) -> None:
        """Forget an engine that has disappeared."""
        for source in self._sources:
            source.forget(name)

    def collectors(self) -> tuple[CollectorStatus, ...]:
        """The status of each source."""
        return tuple(status for source in self._sources for status in source.collectors())

    def close(self) -> None:
        """Stop receiving."""
        for source in self._sources:
            source.close()


class EngineFeed(Protocol):
    """Receives the steps of one engine."""

    def last_received(self) -> Mapping[Method, int]:
        """When a step was last received; empty if none was."""

    def drain(self) -> None:
        """Ingest waiting steps."""

    def collectors(self) -> tuple[CollectorStatus, ...]:
        """The status of receiving."""

    def close(self) -> None:
        """Stop receiving."""


Feed = TypeVar("Feed", bound=EngineFeed)


class EngineFeeds(Generic[Feed]):
    """Feeds of single engines, by their names, as one source."""

    def __init__(self) -> None:
        self.feeds: dict[str, Feed] = {}

    def last_received(self, name: str) -> Mapping[Method, int]:
        """When steps of an engine were last received; empty if it has no feed."""
        return self.feeds[name].last_received() if name in self.feeds else {}

    def drain(self, name: str) -> None:
        """Ingest an engine's waiting steps."""
        if name in self.feeds:
            self.feeds[name].drain()

    def forget(self, name: str) -> None:
        """Close and forget the feed of an engine that has disappeared."""
        if name in self.feeds:
            self.feeds.pop(name).close()

    def collectors(self) -> tuple[CollectorStatus, ...]:
        """The status of each feed."""
        return tuple(status for feed in self.feeds.values() for status in feed.collectors())

    def close(self) -> None:
        """Close all feeds and forget them."""
        for name in tuple(self.feeds):
            self.forget(name)


class ReceiverHealth(CollectorHealth):
    """The health of a receiver of steps; on the page, its last success is the last receipt."""

    _received_wall: float | None = None

    def receive(self) -> None:
        """Record that something was received now."""
        self._received_wall = self._wall()

    def ingesting(self, event: StepEvent) -> AbstractContextManager[object]:
        """Guard the ingestion of one event: an exception must not stop the others.

        Only step records count as success: heartbeats may be understood when steps are not.
        """
        return self.round() if isinstance(event, StepRecords) else self.guard()

    def collectors(self, *, connected: bool = True) -> tuple[CollectorStatus, ...]:
        """Return the collector; it has failed, too, unless engines are connected."""
        status = self.status()
        shown = replace(
            status,
            success=connected and status.success,
            duration_seconds=0.0,
            last_success_timestamp_seconds=self._received_wall,
        )
        return (shown,)
