"""Recent history of a node's devices: the last minute by their accounts, the last hour in bins."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from disagg_exporter.landing.served import ServedHistory
from disagg_exporter.landing.track import KEPT_SECONDS, Track
from disagg_exporter.model import SLICE_NS_PER_GPU_SECOND, DeviceAccount, Snapshot, Use
from disagg_exporter.model.waits import LatencyTargets

WINDOW_NS = 60_000_000_000
_STEP_NS = 5_000_000_000


MOST_DEVICES = 256
"""Most devices with an hour of history; any beyond only count in the node's sum."""

_USES = tuple(Use)
_LEAST_BIN_SECONDS = 5.0  # GPU time is committed every five seconds


@dataclass(frozen=True, slots=True)
class HourBins:
    """The time from `begin_seconds` to `end_seconds` (CLOCK_MONOTONIC) in bins of equal length.

    Each bin holds the share of each use in the order of `Use`; None where nothing is known.
    """

    begin_seconds: float
    end_seconds: float
    shares: tuple[tuple[float, ...] | None, ...]


class HourHistory:
    """The last hour of each device, and of the node; one thread writes, any may read."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._node = Track(len(_USES))
        self._node_seconds = [0.0] * len(_USES)
        self._devices: dict[tuple[str, int], Track] = {}
        self._last: dict[tuple[str, int], tuple[float, ...]] = {}

    def remember(self, snapshot: Snapshot) -> None:
        """Add the accounts of a snapshot."""
        with self._lock:
            present = {(each.device.gpu, each.start_ns): each for each in snapshot.accounts}
            last: dict[tuple[str, int], tuple[float, ...]] = {}
            for key, account in present.items():
                seconds = _seconds_of(account)
                for place, (now, before) in enumerate(
                    zip(seconds, self._last.get(key, seconds), strict=True)
                ):
                    self._node_seconds[place] += max(0.0, now - before)
                last[key] = seconds
                if key not in self._devices and len(self._devices) < MOST_DEVICES:
                    self._devices[key] = Track(len(_USES))
                if key in self._devices:
                    self._devices[key].add(account.watermark_ns / 1e9, seconds)
            self._last = last
            for key in self._devices.keys() - present.keys():
                del self._devices[key]
            if snapshot.accounts:
                self._node.add(snapshot.taken_ns / 1e9, self._node_seconds)

    def node(self, count: int) -> HourBins | None:
        """Return the node's hour in at most `count` bins; None before there is any data."""
        with self._lock:
            return _bins(self._node, count)

    def device(self, account: DeviceAccount, count: int) -> HourBins | None:
        """Return a device's hour; None where nothing is kept of it."""
        with self._lock:
            track = self._devices.get((account.device.gpu, account.start_ns))
            return None if track is None else _bins(track, count)

    def moments(
        self, account: DeviceAccount, span_seconds: float, step_seconds: float
    ) -> list[tuple[float, tuple[float, ...]]]:
        """Return a device's seconds by use so far, at even times of a span up to its last row.

        Times are CLOCK_MONOTONIC; times at which nothing was known are left out.
        """
        with self._lock:
            track = self._devices.get((account.device.gpu, account.start_ns))
            end = None if track is None else track.end_seconds
            if track is None or end is None:
                return []
            steps = int(span_seconds / step_seconds)
            times = [end - step_seconds * step for step in range(steps, -1, -1)]
            return [(time, row) for time in times if (row := track.at(time)) is not None]


def _seconds_of(account: DeviceAccount) -> tuple[float, ...]:
    slice_ns = dict.fromkeys(_USES, 0)
    for cell, value in account.slice_ns.items():
        slice_ns[cell.use] += value
    return tuple(slice_ns[use] / SLICE_NS_PER_GPU_SECOND for use in _USES)


def _bins(track: Track, count: int) -> HourBins | None:
    begin, end = track.begin_seconds, track.end_seconds
    if begin is None or end is None or end - begin < _LEAST_BIN_SECONDS:
        return None
    begin = max(begin, end - KEPT_SECONDS)
    count = max(1, min(count, int((end - begin) / _LEAST_BIN_SECONDS)))
    edges = [begin + (end - begin) * place / count for place in range(count)] + [end]
    rows = [track.at(edge) for edge in edges]
    shares = (_shares(low, high) for low, high in pairwise(rows))
    return HourBins(begin, end, tuple(shares))


def _shares(low: Sequence[float] | None, high: Sequence[float] | None) -> tuple[float, ...] | None:
    if low is None or high is None:
        return None
    spent = [max(0.0, b - a) for a, b in zip(low, high, strict=True)]
    total = sum(spent)
    return tuple(each / total for each in spent) if total > 0 else None


class AccountHistory:
    """Keeps a snapshot's accounts every few seconds, for a little more than the window.

    One thread adds snapshots, any may read: the state is replaced as a whole. `hour` is what the
    devices did over the last hour, `served` what users received.

    Args:
        targets: The latency targets.
    """

    def __init__(self, targets: LatencyTargets | None = None) -> None:
        self._kept: deque[tuple[int, Mapping[str, DeviceAccount]]] = deque()
        self._known: tuple[Mapping[str, DeviceAccount], ...] = ()
        self.hour = HourHistory()
        self.served = ServedHistory(targets or LatencyTargets())

    def remember(self, snapshot: Snapshot) -> None:
        """Add the accounts of the newest snapshot."""
        self.hour.remember(snapshot)
        self.served.remember(snapshot)
        now_ns = snapshot.taken_ns
        if self._kept and now_ns - self._kept[-1][0] < _STEP_NS:
            return
        self._kept.append((now_ns, {account.device.gpu: account for account in snapshot.accounts}))
        # A watermark may stand still for minutes; older accounts are just as good then.
        while now_ns - self._kept[0][0] > 2 * WINDOW_NS:
            self._kept.popleft()
        self._known = tuple(accounts for _, accounts in self._kept)

    def last_minute(self, account: DeviceAccount) -> tuple[int, dict[Use, float]]:
        """Return the length in ns of the device's last committed minute, and its seconds by use.

        Seconds are weighted. It is shorter while the device is younger, or while nothing older is
        kept.
        """
        begin_ns, base = account.start_ns, None
        for accounts in self._known:
            known = accounts.get(account.device.gpu)
            if known is None or known.start_ns != account.start_ns:
                continue
            if base is None or account.watermark_ns - known.watermark_ns >= WINDOW_NS:
                begin_ns, base = known.watermark_ns, known
        if account.watermark_ns - account.start_ns <= WINDOW_NS:
            begin_ns, base = account.start_ns, None
        slice_ns = dict.fromkeys(Use, 0)
        for sign, one in ((1, account), (-1, base)):
            for cell, value in one.slice_ns.items() if one else ():
                slice_ns[cell.use] += sign * value
        seconds = {use: max(0, value) / SLICE_NS_PER_GPU_SECOND for use, value in slice_ns.items()}
        return account.watermark_ns - begin_ns, seconds
