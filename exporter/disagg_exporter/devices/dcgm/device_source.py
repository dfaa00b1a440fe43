"""Readings of NVIDIA devices from a dcgm-exporter that runs on this node."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from disagg_exporter.collectors import CollectorHealth, DaemonThread
from disagg_exporter.devices.dcgm.page import DcgmDevice, parse_dcgm
from disagg_exporter.devices.links import LinkBytes
from disagg_exporter.devices.nvml.health import count_xid
from disagg_exporter.devices.source import DevicesUnavailable
from disagg_exporter.engine_pages.exposition.layout import SeriesKeys
from disagg_exporter.errors import DisaggError
from disagg_exporter.http.client.scrape import fetch
from disagg_exporter.model import Device, DeviceFailure, DeviceReading, DeviceSweep

Fetch = Callable[[str, float], bytes]

DEADLINE_SECONDS = 2.0
PROMPT_SECONDS = 1.0
"""A page collected this often shows closely enough for accounting when a device was busy; on a
slower one, activity would seem to last for half a minute after its end.
"""
_LEAST_SECONDS, _MOST_SECONDS = 1.0, 15.0
_HELD_SCRAPES = 3
_AGAIN_NS = 10_000_000_000
_WAY_OUT = "check `dcgm.url` (its page is at /metrics there), or set `devices: nvml`"

_OTHER_NODE = (
    "the page of dcgm-exporter shows other GPUs only, as that of another node does: `dcgm.url` "
    "must always lead to this node's exporter (a Service: with internalTrafficPolicy: Local)"
)

_log = logging.getLogger("disagg_node")


@dataclass(frozen=True, slots=True)
class _Page:
    """The devices on the page at `seen_ns`, and the Xid errors counted by then."""

    devices: Mapping[str, DcgmDevice]
    xids: Mapping[str, tuple[tuple[int, int], ...]]
    seen_ns: int


def _in_thread(scrape: Callable[[], None]) -> None:
    # A daemon thread: name resolution has no deadline, and must not keep the process from ending.
    DaemonThread(scrape, "dcgm-page").start()


class DcgmDevices:
    """The devices on a dcgm-exporter's page, which is scraped twice per collection interval.

    It is scraped beside the sweeps, one scrape at a time: a sweep never waits for it. Between two
    scrapes the last values hold, as they do on the page itself; they are absent after three scrapes
    in a row have been missed.

    Args:
        url: Its root, such as `http://127.0.0.1:9400`.
        interval_seconds: How often it collects (its `--collect-interval`).
        fetch, clock_ns: Replaceable for tests.
        run_concurrently: Runs a scrape concurrently with sweeps; may raise RuntimeError.

    Raises:
        DevicesUnavailable: The page cannot be fetched, or has no device on it.
    """

    name = "dcgm"

    def __init__(
        self,
        url: str,
        interval_seconds: float,
        *,
        fetch: Fetch = fetch,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        run_concurrently: Callable[[Callable[[], None]], None] = _in_thread,
    ) -> None:
        self._url = url.rstrip("/") + "/metrics"
        self._fetch = fetch
        self._clock_ns = clock_ns
        self._run_concurrently = run_concurrently
        self._prompt = interval_seconds <= PROMPT_SECONDS
        between_seconds = min(max(interval_seconds / 2, _LEAST_SECONDS), _MOST_SECONDS)
        self._between_ns = round(between_seconds * 1e9)
        self._heads = SeriesKeys()
        self._xid: dict[str, int] = {}
        self._links: dict[str, LinkBytes] = {}
        self._xids: dict[str, Counter[int]] = {}
        # Logged when its values become absent, not before.
        self._health = CollectorHealth(
            "dcgm", _log, failing="metrics page: ", silent_failures=_HELD_SCRAPES - 1
        )
        try:
            self._page = self._scrape()
        except DisaggError as error:
            raise DevicesUnavailable(f"no dcgm-exporter: {error}", _WAY_OUT) from error
        if not self._page.devices:
            raise DevicesUnavailable(f"{self._url} has no device", _WAY_OUT)
        self._inventory = tuple(entry.device for entry in self._page.devices.values())
        self._scraping = False
        self._began_ns = self._page.seen_ns

    def inventory(self) -> tuple[Device, ...]:
        """The devices on its page when this object was created."""
        return self._inventory

    def sweep(self, now_ns: int) -> DeviceSweep:
        """Return what the page last reported, if still valid; start the next scrape when due."""
        again_ns = _AGAIN_NS if self._is_missing(self._page, now_ns) else 0
        if not self._scraping and now_ns - self._began_ns >= max(self._between_ns, again_ns):
            self._began_ns = now_ns
            self._begin_scrape()
        page = self._page
        away = self._is_missing(page, now_ns)
        known: Mapping[str, DcgmDevice] = {} if away else page.devices
        readings = tuple(
            self._reading(known[device.gpu], page, now_ns)
            for device in self._inventory
            if device.gpu in known
        )
        why = "it is no longer on the page of dcgm-exporter"
        if away:
            why = self._health.why or "dcgm-exporter does not answer"
        elif known and known.keys().isdisjoint(device.gpu for device in self._inventory):
            why = _OTHER_NODE
        failures = tuple(
            DeviceFailure(device.gpu, why) for device in self._inventory if device.gpu not in known
        )
        return DeviceSweep(now_ns, readings, failures)

    def close(self) -> None:
        """Do nothing: each scrape has a separate connection, which it closes."""

    def _is_missing(self, page: _Page, now_ns: int) -> bool:
        return now_ns - page.seen_ns > _HELD_SCRAPES * self._between_ns

    def _begin_scrape(self) -> None:
        self._scraping = True
        try:
            self._run_concurrently(self._scrape_concurrently)
        except RuntimeError as error:
            self._scraping = False
            self._health.fail(f"no thread is to be had for it: {error}")

    def _scrape_concurrently(self) -> None:
        try:
            with self._health.round():
                self._page = self._scrape()
        finally:
            self._scraping = False

    def _scrape(self) -> _Page:
        devices = parse_dcgm(self._fetch(self._url, DEADLINE_SECONDS), self._heads)
        for entry in devices:
            if entry.xid is not None:
                self._count_xid(entry.device.gpu, entry.xid)
        return _Page(
            {entry.device.gpu: entry for entry in devices},
            {gpu: tuple(sorted(counted.items())) for gpu, counted in self._xids.items()},
            self._clock_ns(),
        )

    def _count_xid(self, gpu: str, number: int) -> None:
        """Count an error when the latest number changes; a repetition cannot be detected."""
        before = self._xid.setdefault(gpu, number)
        counted = self._xids.setdefault(gpu, Counter())
        if number not in (0, before):
            count_xid(counted, number)
        self._xid[gpu] = number

    def _reading(self, entry: DcgmDevice, page: _Page, now_ns: int) -> DeviceReading:
        values = entry.values
        busy = values.get("graphics_ratio", values.get("utilization_ratio"))
        used = values.get("memory_used_bytes")
        return DeviceReading(
            gpu=entry.device.gpu,
            t_ns=now_ns,
            busy_ratio=busy if self._prompt else None,
            memory_used_bytes=None if used is None else round(used),
            memory_total_bytes=entry.device.memory_total_bytes,
            power_watts=values.get("power_watts"),
            energy_joules=values.get("energy_joules"),
            sm_clock_hertz=values.get("sm_clock_hertz"),
            graphics_ratio=busy,
            sm_ratio=values.get("sm_ratio"),
            tensor_ratio=values.get("tensor_ratio"),
            dram_ratio=values.get("dram_ratio"),
            xid_errors=page.xids.get(entry.device.gpu),
            temperature_celsius=values.get("temperature_celsius"),
            memory_temperature_celsius=values.get("memory_temperature_celsius"),
            power_limit_watts=values.get("power_limit_watts"),
            traffic=self._links.setdefault(entry.device.gpu, LinkBytes()).add(
                entry.link_rates.items(), now_ns
            ),
        )
