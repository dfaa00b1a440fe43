"""The live view: one thread takes readings, another handles keys and painting."""

from __future__ import annotations

import contextlib
import os
import queue
import selectors
import shutil
import signal
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from disagg_cluster.host.worker_logs import last_lines
from disagg_cluster.top.readings.values import LiveReading
from disagg_cluster.top.screen.controls import Controls, ScreenPage, pressed, selected_engine
from disagg_cluster.top.screen.lines import Glyphs
from disagg_cluster.top.screen.other_pages import LogTail
from disagg_cluster.top.screen.screen import screen
from disagg_cluster.top.sources.reading_source import ReadingSource
from disagg_cluster.top.terminal.keys import keys_of
from disagg_cluster.top.terminal.once import read_first
from disagg_cluster.top.terminal.painter import CLEAR, Painter
from disagg_cluster.top.terminal.raw_terminal import raw_terminal, write_all
from disagg_cluster.top.view.building import view_of
from disagg_cluster.top.view.reading_history import ReadingHistory
from disagg_cluster.top.view.values import TerminalView
from disagg_exporter.errors import DisaggError

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_MOST_LOG_LINES = 500
_READ_BYTES = 1024


@dataclass(frozen=True, slots=True)
class _Update:
    """A reading, or why there is none."""

    reading: LiveReading | None
    unanswered: str = ""


class ReadingThread(threading.Thread):
    """Takes readings at an interval, and signals new ones on a socket."""

    def __init__(self, source: ReadingSource, interval_seconds: float, bell: socket.socket) -> None:
        super().__init__(name="readings", daemon=True)
        self._source = source
        self._interval_seconds = interval_seconds
        self._bell = bell
        self.ended = threading.Event()
        self.updates: queue.SimpleQueue[_Update] = queue.SimpleQueue()

    def run(self) -> None:
        """Read until the end."""
        while not self.ended.wait(self._interval_seconds):
            try:
                update = _Update(self._source.read())
            except DisaggError as error:
                update = _Update(None, str(error).splitlines()[0])
            except Exception as error:  # noqa: BLE001 - the next page may be one that can be shown
                update = _Update(None, f"what it says cannot be shown: {error!r}")
            self.updates.put(update)
            with contextlib.suppress(OSError):
                self._bell.send(b"!")


class LiveView:
    """Shows a source until a key or a signal ends it.

    Args:
        source: Read by a separate thread.
        output: The terminal.
        painter: Paints it.
        glyphs: The characters for drawing.
        interval_seconds: Time between readings.
        parent: The process with which the view ends; None for none.
    """

    def __init__(
        self,
        source: ReadingSource,
        output: IO[str],
        painter: Painter,
        glyphs: Glyphs,
        interval_seconds: float,
        parent: int | None = None,
    ) -> None:
        self._parent = parent
        self._source = source
        self._output = output
        self._painter = painter
        self._glyphs = glyphs
        self._interval_seconds = interval_seconds
        self._readings = ReadingHistory()
        self._controls = Controls()
        self._unanswered = ""
        self._view: TerminalView = self._built_view()
        self._size = (0, 0)
        self._signal: int | None = None

    def begin(self) -> None:
        """Take the first reading; raises `DisaggError` if there is none."""
        read_first(self._source, self._readings)
        self._view = self._built_view()

    def run(self, keyboard: int) -> int | None:
        """Show the view; returns the signal that ended it, None if a key did."""
        bell, receiver = socket.socketpair()
        reader = ReadingThread(self._source, self._interval_seconds, bell)
        with bell, receiver, self._signals(bell), raw_terminal(keyboard, self._output):
            reader.start()
            try:
                self._loop(reader, receiver, keyboard)
            finally:
                reader.ended.set()
        return self._signal

    def _loop(self, reader: ReadingThread, receiver: socket.socket, keyboard: int) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(receiver, selectors.EVENT_READ)
            with contextlib.suppress(PermissionError):  # a file has no keys
                selector.register(keyboard, selectors.EVENT_READ)
            while not self._controls.ended and self._signal is None and not self._is_orphan():
                self._paint()
                for ready, _ in selector.select(self._interval_seconds):
                    if ready.fd != keyboard:
                        receiver.recv(_READ_BYTES)
                    elif data := os.read(keyboard, _READ_BYTES):
                        self._press(data)
                    else:
                        selector.unregister(keyboard)
                self._receive(reader)

    def _is_orphan(self) -> bool:
        return self._parent is not None and os.getppid() != self._parent

    def _receive(self, reader: ReadingThread) -> None:
        changed = False
        while not reader.updates.empty():
            update = reader.updates.get()
            self._unanswered = update.unanswered
            if update.reading is not None:
                self._readings.add(update.reading)
            changed = True
        if changed and not self._controls.frozen:
            self._view = self._built_view()

    def _built_view(self) -> TerminalView:
        source = self._source
        view = view_of(source.title, source.links, self._readings, self._unanswered)
        return replace(view, links=source.links)

    def _press(self, data: bytes) -> None:
        for key in keys_of(data):
            was_frozen = self._controls.frozen
            self._controls = pressed(self._controls, key, self._view)
            if was_frozen and not self._controls.frozen:
                self._view = self._built_view()

    def _paint(self) -> None:
        size = shutil.get_terminal_size()
        text = ""
        if size != self._size:
            self._size = size
            self._painter.forget()
            text = CLEAR
        lines = screen(self._view, self._controls, *size, self._glyphs, self._log())
        # On a terminal below the minimum size, only the upper left part is visible.
        write_all(self._output, text + self._painter.frame(lines[: size.lines]))

    def _log(self) -> LogTail | None:
        """The last lines of the selected engine's log, if the page shows it."""
        if self._controls.page not in (ScreenPage.ENGINE, ScreenPage.LOG):
            return None
        engine = selected_engine(self._view, self._controls)
        paths = [
            worker.log
            for worker in self._view.workers
            if engine
            and worker.log
            and (worker.node, worker.worker) == (engine.node, engine.engine)
        ]
        if not paths or not paths[0]:
            return None
        lines = last_lines(Path(paths[0]), _MOST_LOG_LINES)
        if self._controls.page is ScreenPage.ENGINE:
            lines = lines[-max(3, self._size[1] // 4) :]
        return LogTail(paths[0], lines, "" if lines else "nothing is in it, or it cannot be read")

    @contextlib.contextmanager
    def _signals(self, bell: socket.socket) -> Iterator[None]:
        """Handle signals that end the view, and wake up when the terminal is resized."""

        def ended(number: int, _frame: object) -> None:
            self._signal = number

        bell.setblocking(False)
        before = {sign: signal.signal(sign, ended) for sign in _ENDING}
        before[signal.SIGWINCH] = signal.signal(signal.SIGWINCH, lambda *_: None)
        waker = signal.set_wakeup_fd(bell.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(waker)
            for sign, handler in before.items():
                signal.signal(sign, handler)
