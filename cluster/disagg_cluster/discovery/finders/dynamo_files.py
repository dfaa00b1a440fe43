"""Finds Dynamo's workers in the files by which they find one another without Kubernetes.

Below the folder that DYN_FILE_KV names, each endpoint of a worker is a file in `v1/instances` and
each worker's model card one in `v1/mdc`; a worker that lives writes them anew every few seconds.
Seen with ai-dynamo 1.6.1.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from disagg_cluster.discovery.finders.listed import near
from disagg_cluster.discovery.sightings.types import (
    Claimed,
    Endpoint,
    Finder,
    Look,
    Sighting,
    port_of,
)
from disagg_cluster.host.processes.process_table import read_bytes
from disagg_exporter.roles.evidence.labels import DYNAMO_WORKER_TYPE
from disagg_exporter.roles.evidence.types import Markers

MAX_FILES = 1024
MAX_FILE_BYTES = 256 * 1024

# Files are refreshed every three to seven seconds; one this old is of a worker that has ended.
STALE_SECONDS = 20.0
_ENDPOINT = "generate"
_WORKER = re.compile(r'[{,]worker_id="([0-9a-f]{1,16})"')
_HOST = re.compile(r"[0-9A-Za-z.:\[\]-]{1,253}")
_SYSTEM = re.compile(rf"http://({_HOST.pattern}):([0-9]{{1,5}})/v1/metadata/")


class DynamoFinder:
    """Reads the files anew at each look.

    Args:
        folder: What DYN_FILE_KV names.
        clock, wall: Seams; seconds.
    """

    finder = Finder.DYNAMO

    def __init__(
        self,
        folder: Path,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._folder = folder
        self._clock = clock
        self._wall = wall

    def look(self) -> Look:
        """The workers that are registered now."""
        began = self._clock()
        try:
            endpoints = list(self._read("v1/instances"))
        except OSError as error:
            lost = (
                f"{error.filename}: {error.strerror}: Dynamo's workers are found without their "
                "registration"
            )
            return Look(self.finder, (), lost, self._clock() - began)
        try:
            cards = {_worker(told): told for told in self._read("v1/mdc")}
        except OSError:
            cards = {}  # a worker without a model card, such as one that only starts
        seen = [
            _sighting(told, cards.get(_worker(told), {}))
            for told in endpoints
            if told.get("endpoint") == _ENDPOINT and _worker(told)
        ]
        return Look(self.finder, tuple(seen), "", self._clock() - began)

    def _read(self, bucket: str) -> Iterator[Mapping[str, object]]:
        """The values of a bucket that are fresh. Raises `OSError` where there is no such folder."""
        with os.scandir(self._folder / bucket) as entries:
            for _, entry in zip(range(MAX_FILES), entries, strict=False):
                try:
                    if not entry.is_file(follow_symlinks=False):
                        continue
                    age_seconds = self._wall() - entry.stat(follow_symlinks=False).st_mtime
                except OSError:
                    continue  # it has just gone
                told = _parsed(read_bytes(entry.path, MAX_FILE_BYTES))
                if age_seconds <= STALE_SECONDS and told is not None:
                    yield told


def worker_of_page(lines: Iterable[str]) -> str:
    """The id that a Dynamo worker gives itself on its page, in hex; empty if it gives none."""
    for line in lines:
        if line.startswith("dynamo_component_") and (found := _WORKER.search(line)):
            return found[1]
    return ""


def _sighting(endpoint: Mapping[str, object], card: Mapping[str, object]) -> Sighting:
    at = _transport(endpoint)
    inner = card.get("card_json")
    inner = inner if isinstance(inner, Mapping) else {}
    worker_type = inner.get("worker_type")
    labels = {DYNAMO_WORKER_TYPE: worker_type} if isinstance(worker_type, str) else {}
    component = endpoint.get("component")
    return Sighting(
        Finder.DYNAMO,
        kind="dynamo",
        endpoints=_system(inner),
        # Where requests go: no page is there, but a process listens.
        also_at=tuple(place for told in at for place in (told, *near(told))),
        markers=Markers(labels=labels, name=component if isinstance(component, str) else ""),
        claimed=Claimed(_worker(endpoint)),
    )


def _worker(told: Mapping[str, object]) -> str:
    """The id of a worker in hex; files have it in decimal, pages in hex."""
    number = told.get("instance_id")
    return f"{number:x}" if isinstance(number, int) and 0 <= number < 1 << 64 else ""


def _transport(endpoint: Mapping[str, object]) -> tuple[Endpoint, ...]:
    transport = endpoint.get("transport")
    told = transport.get("tcp") if isinstance(transport, Mapping) else None
    host, _, port = (told.partition("/")[0] if isinstance(told, str) else "").rpartition(":")
    return _endpoints(host, port)


def _system(card: Mapping[str, object]) -> tuple[Endpoint, ...]:
    """The worker's own HTTP server, from where it says its configuration can be fetched."""
    info = card.get("model_info")
    parts = info.values() if isinstance(info, Mapping) else ()
    for part in parts:
        path = part.get("path") if isinstance(part, Mapping) else None
        found = _SYSTEM.match(path) if isinstance(path, str) else None
        if found:
            return _endpoints(found[1], found[2])
    return ()


def _endpoints(host: str, port: str) -> tuple[Endpoint, ...]:
    known = port_of(port)
    return (Endpoint(host.strip("[]"), known),) if known and _HOST.fullmatch(host) else ()


def _parsed(data: bytes) -> Mapping[str, object] | None:
    try:
        told = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return told if isinstance(told, Mapping) else None
