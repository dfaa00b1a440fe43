"""What the devices' books said up to a minute ago, so that the last minute can be told."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from disagg_exporter.model import SLICE_NS_PER_GPU_SECOND, DeviceAccount, Snapshot, Use

WINDOW_NS = 60_000_000_000
_STEP_NS = 5_000_000_000


class Lookback:
    """Remembers a snapshot's accounts every few seconds, for a little more than the window.

    One thread tells it of snapshots, any may ask: it swaps what it knows whole.
    """

    def __init__(self) -> None:
        self._kept: deque[tuple[int, Mapping[str, DeviceAccount]]] = deque()
        self._known: tuple[Mapping[str, DeviceAccount], ...] = ()

    def remember(self, snapshot: Snapshot) -> None:
        """Take the accounts of the newest snapshot, if the last that were taken are old enough."""
        now_ns = snapshot.taken_ns
        if self._kept and now_ns - self._kept[-1][0] < _STEP_NS:
            return
        self._kept.append((now_ns, {account.device.gpu: account for account in snapshot.accounts}))
        # A watermark may stand still for minutes; the books of before it are worth as much then.
        while now_ns - self._kept[0][0] > 2 * WINDOW_NS:
            self._kept.popleft()
        self._known = tuple(accounts for _, accounts in self._kept)

    def last_minute(self, account: DeviceAccount) -> tuple[int, dict[Use, float]]:
        """How long the device's last committed minute is, in ns, and its weighted seconds by use.

        It is shorter while the device is younger, or while nothing older is remembered.
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
        for sign, books in ((1, account), (-1, base)):
            for cell, value in books.slice_ns.items() if books else ():
                slice_ns[cell.use] += sign * value
        seconds = {use: max(0, value) / SLICE_NS_PER_GPU_SECOND for use, value in slice_ns.items()}
        return account.watermark_ns - begin_ns, seconds
