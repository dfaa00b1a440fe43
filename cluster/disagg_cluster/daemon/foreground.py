"""Runs a daemon in a terminal or as a service: handles signals and prints a line per second."""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import logging
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager

from disagg_cluster.daemon.daemon import Daemon
from disagg_cluster.daemon.leaving import WaitReports, ending_text, nothing_found_text, summary_text
from disagg_cluster.daemon.status_line import line
from disagg_cluster.host.daemon_output import LogRateLimit
from disagg_cluster.host.garbage import rarely_collected
from disagg_cluster.host.json_log import JsonLines
from disagg_cluster.host.libc import share_one_heap, subreaping
from disagg_cluster.host.linear_algebra import hold_buffer, one_thread
from disagg_cluster.host.service_manager import LifeSigns, ServiceManager
from disagg_exporter.http.listen import ListenAddress
from disagg_exporter.model import Snapshot

EachSecond = Callable[[Snapshot], None]
Beside = Callable[[Daemon, ListenAddress], AbstractContextManager[None]]
"""A context entered once the workers are ready, for example a load generator."""


_log = logging.getLogger("disagg_node")
_READY_POLL_SECONDS = 0.1
_SCANNED_SECONDS = 5  # Discovery has scanned twice by then.
_LISTENED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def log_to_stderr(verbose: bool, *, as_json: bool = False) -> None:
    """Log to stderr, one line per event; repeated events are rate-limited."""
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(LogRateLimit())
    handler.setFormatter(
        JsonLines()
        if as_json
        else logging.Formatter("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S")
    )
    # Handlers set up by the embedding program stay unchanged and get every record.
    logging.basicConfig(level=logging.DEBUG if verbose else logging.INFO, handlers=[handler])


async def run(
    daemon: Daemon,
    each_second: EachSecond,
    *,
    beside: Beside = lambda _daemon, _address: contextlib.nullcontext(),
    serving: Callable[[ListenAddress], None] = lambda _address: None,
    seconds: float | None = None,
    hangup_ends: bool = False,
    outdated: Callable[[], Awaitable[str]] | None = None,
) -> bool:
    """Run until SIGINT or SIGTERM, or for `seconds` after all workers are ready.

    Returns whether a new daemon should follow at once in this process.

    The first signal drains and stops the workers; a second one stops waiting for their requests. If
    the node file says to leave the engines on SIGTERM, that signal ends only the daemon. SIGHUP
    reloads the web-config file.

    Args:
        daemon: The daemon to run.
        each_second: Called with the latest snapshot once a second while it serves.
        beside: Entered when all workers are ready, left before they are stopped.
        serving: Called with the address of the metrics page as soon as it is served.
        seconds: How long to run; forever if None.
        hangup_ends: Treat SIGHUP, the closing of the terminal, as SIGINT.
        outdated: Called once it runs; returns why a new daemon should follow, which is to adopt the
            engines.
    """
    share_one_heap()
    one_thread()
    hold_buffer()
    manager = ServiceManager(os.environ, logging.getLogger(__name__))
    signs = LifeSigns(manager, lambda: daemon.is_well, lambda: _status(daemon.snapshot))
    if manager.watchdog_seconds is not None:
        # A watchdog kills with SIGABRT; the stack of each thread is then the only evidence.
        faulthandler.enable()
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    is_replaced = False
    hurrying: list[asyncio.Task[None]] = []

    def asked(sign: signal.Signals) -> None:
        leaves = sign is signal.SIGTERM and daemon.on_sigterm == "leave"
        if stopping.is_set():
            _log.info("ending: no request is waited for any more")
            hurrying.append(loop.create_task(daemon.hurry()))
        else:
            _log.info("%s", ending_text(daemon.snapshot, daemon.drain_seconds, leaves=leaves))
            if leaves:
                daemon.leave()
        signs.end()
        daemon.ending()
        stopping.set()

    async def replaced(awaited_news: Callable[[], Awaitable[str]]) -> None:
        nonlocal is_replaced
        news = await awaited_news()
        if daemon.worker_states:
            # A reload has launched them since, on what there was: the next start places them anew.
            _log.info("%s: not used before the next start", news)
            return
        _log.info("starting again: %s", news)
        manager.reloading()
        daemon.leave()
        daemon.ending()
        is_replaced = not stopping.is_set()
        stopping.set()

    def reload() -> None:
        manager.reloading()
        daemon.reload()
        manager.ready()

    # If inherited as ignored, the kernel would discard the exit codes of children.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for sign in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(sign, asked, sign)
    if hangup_ends:
        loop.add_signal_handler(signal.SIGHUP, asked, signal.SIGINT)
    else:
        loop.add_signal_handler(signal.SIGHUP, reload)
    # The parent may have blocked these signals until there are handlers; pending ones arrive now.
    if {signal.SIGINT, signal.SIGTERM} & signal.sigpending():
        daemon.ending()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _LISTENED)
    beside_it = [loop.create_task(_log_waits(daemon))]
    if outdated is not None:
        beside_it.append(loop.create_task(replaced(outdated)))
    try:
        with rarely_collected(), subreaping():
            async with signs.given(), daemon.running() as address:
                serving(address)
                manager.ready()
                await _serve(daemon, address, stopping, each_second, beside, seconds)
            await asyncio.gather(*hurrying)
        return is_replaced
    finally:
        for task in beside_it:
            task.cancel()
        await asyncio.gather(*beside_it, return_exceptions=True)
        for sign in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.remove_signal_handler(sign)


async def _log_waits(daemon: Daemon) -> None:
    """Log waits while they last, and a summary at the end."""
    waits, first, looked = WaitReports(), None, 0
    try:
        while True:
            await asyncio.sleep(1.0)
            if (snapshot := daemon.snapshot) is None:
                continue
            first = first or snapshot
            looked += 1
            if looked == _SCANNED_SECONDS and not (snapshot.engines or snapshot.workers):
                _log.info("%s", nothing_found_text(daemon.attach))
            for text in waits.lines(snapshot, time.time(), daemon.worker_states):
                _log.info("%s", text)
    finally:
        last = daemon.snapshot
        if first is not None and last is not None:
            _log.info("%s", summary_text(first, last))


async def _serve(
    daemon: Daemon,
    address: ListenAddress,
    stopping: asyncio.Event,
    each_second: EachSecond,
    beside: Beside,
    seconds: float | None,
) -> None:
    loop = asyncio.get_running_loop()
    listening = True
    with contextlib.ExitStack() as stack:
        until: float | None = None
        begun = False
        due = loop.time()
        while not stopping.is_set() and (until is None or loop.time() < until):
            if daemon.ready and not begun:
                begun = True
                stack.enter_context(beside(daemon, address))
                until = None if seconds is None else loop.time() + seconds
            if loop.time() >= due:
                due = loop.time() + 1.0
                if daemon.snapshot is not None and listening:
                    listening = _report(each_second, daemon.snapshot)
            pause = due - loop.time()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause if begun else min(pause, _READY_POLL_SECONDS)):
                    await stopping.wait()


def _status(snapshot: Snapshot | None) -> str:
    return "" if snapshot is None else line(snapshot, "").workers_text()


def _report(each_second: EachSecond, snapshot: Snapshot) -> bool:
    """Print a line; returns False if that fails: a closed terminal must not end the engines."""
    try:
        each_second(snapshot)
    except OSError as error:
        logging.getLogger(__name__).warning("no more lines are printed: %s", error)
        return False
    return True
