"""Notifies a service manager, by the protocol of systemd's sd_notify.

It sends datagrams to the socket named in our environment. A failure to send has no consequence: it
is logged once, and the daemon continues.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field

_MOST_STATUS = 200
_STATUS_SECONDS = 1.0
_EXTENSION_SECONDS = 30.0
"""Extension of the stop timeout that is requested; repeated three times within it."""


class ServiceManager:
    """The service manager that started us, if it wants notifications; else a no-op.

    Args:
        environ: Our environment: NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID are read.
        log: Logs once why it cannot be notified.
    """

    def __init__(self, environ: Mapping[str, str], log: logging.Logger) -> None:
        self._log = log
        self._address = _address(environ.get("NOTIFY_SOCKET", ""))
        self._status = ""
        self._silent = False
        self.watchdog_seconds = None if self._address is None else _watchdog_seconds(environ)
        """Watchdog interval within which it expects a sign of life; None if it expects none."""

    @property
    def listens(self) -> bool:
        """Whether there is one to notify."""
        return self._address is not None

    def ready(self) -> None:
        """Notify that we serve."""
        self._send("READY=1")

    def reloading(self) -> None:
        """Notify that we reload our configuration; `ready` ends that."""
        self._send(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        """Notify that we are stopping."""
        self._send("STOPPING=1")

    def extend_timeout(self, seconds: float) -> None:
        """Request this much more time to start or to stop, from now."""
        self._send(f"EXTEND_TIMEOUT_USEC={round(seconds * 1e6)}")

    def alive(self) -> None:
        """Send a sign of life."""
        self._send("WATCHDOG=1")

    def status(self, text: str) -> None:
        """Send a status line; an unchanged one is not sent again."""
        line = " ".join(text.split())[:_MOST_STATUS]
        if line != self._status:
            self._status = line
            self._send(f"STATUS={line}")

    def _send(self, message: str) -> None:
        if self._address is None:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as link:
                link.setblocking(False)
                link.sendto(message.encode(errors="replace"), self._address)
        except OSError as error:
            if not self._silent:
                self._log.warning("the service manager cannot be notified: %s", error.strerror)
            self._silent = True
        else:
            self._silent = False


def _address(named: str) -> bytes | None:
    """Return the address of the socket; None if there is none, or of an unsupported kind."""
    if named.startswith("@"):
        return b"\0" + os.fsencode(named[1:])
    return os.fsencode(named) if named.startswith("/") else None


def _watchdog_seconds(environ: Mapping[str, str]) -> float | None:
    told_pid = environ.get("WATCHDOG_PID", "")
    if told_pid and told_pid != str(os.getpid()):
        return None
    text = environ.get("WATCHDOG_USEC", "")
    seconds = int(text) / 1e6 if text.isascii() and text.isdigit() else 0.0
    return seconds or None


@dataclass(slots=True)
class LifeSigns:
    """Sends signs of life at half the watchdog's interval, only while all is well.

    A task of the daemon's own loop sends them: a loop that hangs sends none.

    Args:
        manager: Is notified.
        is_well: Whether everything essential is alive, too.
        status: A status line; nothing is sent if it is empty.
    """

    manager: ServiceManager
    is_well: Callable[[], bool]
    status: Callable[[], str]
    _ending: bool = field(default=False, init=False)

    @contextlib.asynccontextmanager
    async def given(self) -> AsyncIterator[None]:
        """Send them until the block ends."""
        if not self.manager.listens:
            yield
            return
        tasks = [asyncio.create_task(self._send_status())]
        if (seconds := self.manager.watchdog_seconds) is not None:
            tasks.append(asyncio.create_task(self._send_watchdog(seconds / 2)))
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def end(self) -> None:
        """Notify that the daemon is stopping, and keep requesting time."""
        if not self._ending:
            self._ending = True
            self.manager.stopping()
            self.manager.extend_timeout(_EXTENSION_SECONDS)

    async def _send_watchdog(self, seconds: float) -> None:
        while True:
            if self.is_well():
                self.manager.alive()
            await asyncio.sleep(seconds)

    async def _send_status(self) -> None:
        seconds = 0.0
        while True:
            if text := self.status():
                self.manager.status(text)
            await asyncio.sleep(_STATUS_SECONDS)
            seconds += _STATUS_SECONDS
            if self._ending and seconds >= _EXTENSION_SECONDS / 3:
                seconds = 0.0
                self.manager.extend_timeout(_EXTENSION_SECONDS)
