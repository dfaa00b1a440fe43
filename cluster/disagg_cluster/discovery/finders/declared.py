"""Engines that are declared: listed in the node file, or registered by Dynamo.

Without Kubernetes, Dynamo's workers find one another by files. Below the folder that DYN_FILE_KV
names, each endpoint of a worker is a file in `v1/instances` and each worker's model card one in
`v1/mdc`; a live worker rewrites them every few seconds. Observed with ai-dynamo 1.6.1.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from disagg_cluster.config import ListedEngine
from disagg_cluster.discovery.finders.own_addresses import OwnAddresses
from disagg_cluster.discovery.finders.renewals import FileRenewals
from disagg_cluster.discovery.observations.types import (
    Claimed,
    Endpoint,
    Finder,
    Observation,
    Scan,
    port_of,
)
from disagg_cluster.host.foreign_json import parse_foreign
from disagg_cluster.host.processes.process_table import read_bytes
from disagg_exporter.model import Device
from disagg_exporter.roles.evidence.labels import DYNAMO_WORKER_TYPE
from disagg_exporter.roles.evidence.types import Markers


class ListedFinder:
    """Always reports the listed engines; their pages show whether they exist.

    Args:
        listed: The node file's list.
        devices: The devices of this node.
    """

    finder = Finder.LISTED

    def __init__(
        self,
        listed: Sequence[ListedEngine],
        devices: Sequence[Device] = (),
    ) -> None:
        self._listed = tuple(listed)
        self._devices = tuple(devices)
        self._own = OwnAddresses()

    def scan(self) -> Scan:
        """Return the listed engines."""
        return Scan(tuple(map(self._observation, self._listed)))

    def _observation(self, engine: ListedEngine) -> Observation:
        parts = urlsplit(engine.url)
        secure = parts.scheme == "https"
        endpoint = Endpoint(parts.hostname or "", parts.port or 80, tls=secure)
        return Observation(
            finder=Finder.LISTED,
            kind=engine.engine,
            endpoints=(endpoint,),
            also_at=self._own.near(endpoint),
            gpus=gpus_of(engine, self._devices),
            name=engine.name or "",
            role=engine.role,
            tls=engine.tls,
        )


def gpus_of(engine: ListedEngine, devices: Sequence[Device]) -> tuple[str, ...] | None:
    """Return the UUIDs of the devices that a person listed; None where they listed none."""
    found = (d.gpu for item in engine.gpus for d in devices if item in (d.index, d.gpu))
    return tuple(dict.fromkeys(found)) or None


MAX_FILES = 1024
MAX_FILE_BYTES = 256 * 1024

# Files are refreshed every three to seven seconds; an older one belongs to a worker that has ended.
STALE_SECONDS = 20.0
_ENDPOINT = "generate"
_WORKER = re.compile(r'[{,]worker_id="([0-9a-f]{1,16})"')
_HOST = re.compile(r"[0-9A-Za-z.:\[\]-]{1,253}")
_SYSTEM = re.compile(rf"http://({_HOST.pattern}):([0-9]{{1,5}})/v1/metadata/")


class DynamoFinder:
    """Reads the files again at each scan.

    Args:
        folder: The value of DYN_FILE_KV.
        wall: Clock in seconds; replaceable for tests.
        clock: Monotonic clock in seconds; replaceable for tests.
    """

    finder = Finder.DYNAMO

    def __init__(
        self,
        folder: Path,
        *,
        wall: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = folder
        self._renewals = FileRenewals(wall, clock)
        self._own = OwnAddresses()

    def scan(self) -> Scan:
        """Return the workers that are registered now."""
        try:
            endpoints = list(self._read("v1/instances"))
        except OSError as error:
            why = f"{error.filename}: {error.strerror}"
            lost = f"{why}: Dynamo's workers are found without their registration"
            return Scan(lost=lost, failed=True)
        try:
            cards = {_worker(card): card for card in self._read("v1/mdc")}
        except OSError:
            cards = {}  # a worker without a model card, such as one that only starts
        self._renewals.forget_others()
        seen = [
            _observation(endpoint, cards.get(_worker(endpoint), {}), self._own)
            for endpoint in endpoints
            if endpoint.get("endpoint") == _ENDPOINT and _worker(endpoint)
        ]
        return Scan(tuple(seen))

    def _read(self, bucket: str) -> Iterator[Mapping[str, object]]:
        """Yield the fresh values of a bucket. Raises `OSError` where there is no such folder."""
        with os.scandir(self._folder / bucket) as entries:
            for _, entry in zip(range(MAX_FILES), entries, strict=False):
                try:
                    if not entry.is_file(follow_symlinks=False):
                        continue
                    found = entry.stat(follow_symlinks=False)
                except OSError:
                    continue  # it has just gone
                age_seconds = self._renewals.age_seconds(entry.path, found)
                record = _parsed(read_bytes(entry.path, MAX_FILE_BYTES))
                if age_seconds <= STALE_SECONDS and record is not None:
                    yield record


def worker_of_page(lines: Iterable[str]) -> str:
    """Return a Dynamo worker's own id on its page, in hex; empty if there is none."""
    for line in lines:
        if line.startswith("dynamo_component_") and (found := _WORKER.search(line)):
            return found[1]
    return ""


def _observation(
    endpoint: Mapping[str, object], card: Mapping[str, object], addresses: OwnAddresses
) -> Observation:
    at = _transport(endpoint)
    inner = card.get("card_json")
    inner = inner if isinstance(inner, Mapping) else {}
    worker_type = inner.get("worker_type")
    labels = {DYNAMO_WORKER_TYPE: worker_type} if isinstance(worker_type, str) else {}
    component = endpoint.get("component")
    return Observation(
        finder=Finder.DYNAMO,
        kind="dynamo",
        endpoints=_system(inner),
        # Where requests go: there is no page, but a process listens.
        also_at=tuple(place for own in at for place in (own, *addresses.near(own))),
        markers=Markers(labels=labels, name=component if isinstance(component, str) else ""),
        claimed=Claimed(_worker(endpoint)),
    )


def _worker(record: Mapping[str, object]) -> str:
    """Return the id of a worker in hex; files have it in decimal, pages in hex."""
    number = record.get("instance_id")
    return f"{number:x}" if isinstance(number, int) and 0 <= number < 1 << 64 else ""


def _transport(endpoint: Mapping[str, object]) -> tuple[Endpoint, ...]:
    transport = endpoint.get("transport")
    at = transport.get("tcp") if isinstance(transport, Mapping) else None
    host, _, port = (at.partition("/")[0] if isinstance(at, str) else "").rpartition(":")
    return _endpoints(host, port)


def _system(card: Mapping[str, object]) -> tuple[Endpoint, ...]:
    """Return the worker's own HTTP server, from the URL where its configuration can be fetched."""
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
        record = parse_foreign(data)
    except ValueError:
        return None
    return record if isinstance(record, Mapping) else None
