"""Asks many servers for a page each, on one thread; one that hangs delays no other.

Whatever asking one raises is told as what became of its question, and ends that of no other.

A connection is kept for the next page if its server keeps it: a new one costs as much as the page.
"""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from disagg_exporter.http.client.fetch import Address, Ask, EngineRefused, EngineUnreachable, Told
from disagg_exporter.http.client.response_parser import Answer, AnswerError
from disagg_exporter.http.tls_words import TlsError, TlsFault

if TYPE_CHECKING:
    from disagg_exporter.http.client.tls_client import TlsChannel

_READ_BYTES = 256 * 1024


@dataclass(slots=True, eq=False)
class _Talk:
    """A connection with a question on its way; a kept one has been answered.

    `sock` is a socket, or what speaks TLS on one; then `tls` is the same.
    """

    sock: socket.socket | TlsChannel
    ask: Ask
    answer: Answer
    end_seconds: float
    unsent: bytes
    untried: tuple[Address, ...] = field(default=(), repr=False)
    tls: TlsChannel | None = None
    reused: bool = False
    answered: bool = False


class Asking:
    """The questions on their way. Only `wake` may be called from another thread.

    Args:
        max_bytes: How large a page may be.
        keep: Whether connections are kept for the next question.
    """

    def __init__(self, max_bytes: int, *, keep: bool = True) -> None:
        self._max_bytes = max_bytes
        self._keep = keep
        self._talks: dict[str, _Talk] = {}
        self._told: list[Told] = []
        self._buffer = memoryview(bytearray(_READ_BYTES))
        self._ending, self._ended = threading.Lock(), False
        with contextlib.ExitStack() as undo:
            # Whoever keeps the error would keep what was opened before the last descriptor.
            self._selector = undo.enter_context(selectors.DefaultSelector())
            self._waking = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            undo.callback(os.close, self._waking)
            self._selector.register(self._waking, selectors.EVENT_READ)
            undo.pop_all()

    def ask(self, ask: Ask) -> None:
        """Begin to ask; what becomes of it is told by `step`."""
        with self._guarded(ask):
            self._ask(ask, time.monotonic() + ask.deadline_seconds)

    def _ask(self, ask: Ask, end_seconds: float) -> None:
        kept = self._talks.get(ask.key)
        if kept is None or not kept.answered or not _same_server(kept.ask, ask):
            self.forget(ask.key)
            self._connect(ask, end_seconds, ask.addresses)
            return
        kept.ask, kept.end_seconds, kept.answer = ask, end_seconds, Answer(self._max_bytes)
        kept.unsent, kept.reused, kept.answered = ask.request(keep=self._keep), True, False
        if kept.tls is not None:
            kept.tls.begin_answer()
        self._send(kept)

    def step(self) -> list[Told]:
        """Wait until something has become of a question, or somebody wakes us."""
        while not self._told:
            ends = [talk.end_seconds for talk in self._talks.values() if not talk.answered]
            wait_seconds = max(min(ends) - time.monotonic(), 0.0) if ends else None
            woken = False
            for key, _ in self._selector.select(wait_seconds):
                if key.data is None:
                    os.eventfd_read(self._waking)
                    woken = True
                else:
                    self._go_on_alone(key.data)
            now_seconds = time.monotonic()
            for talk in tuple(self._talks.values()):
                if not talk.answered and talk.end_seconds <= now_seconds:
                    with self._guarded(talk.ask):
                        self._fail(talk, f"no whole answer in {talk.ask.deadline_seconds:g} s")
            if woken:
                break
        told, self._told = self._told, []
        return told

    def wake(self) -> None:
        """Let the present `step`, or the next one, return at once; nothing after `close`."""
        # Once closed, the descriptor may be anybody's.
        with self._ending:
            if not self._ended:
                os.eventfd_write(self._waking, 1)

    def forget(self, key: str) -> None:
        """Hang up on a server; nothing more is told of its question."""
        if talk := self._talks.get(key):
            self._drop(talk)

    def close(self) -> None:
        """Hang up on all; it cannot be used again."""
        for talk in tuple(self._talks.values()):
            self._drop(talk)
        self._selector.close()
        with self._ending:
            self._ended = True
            os.close(self._waking)

    @contextlib.contextmanager
    def _guarded(self, ask: Ask) -> Iterator[None]:
        """Do something for a question; what it raises becomes of that question, and ends here."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - one server is not to end what others are asked
            self.forget(ask.key)
            self._told.append(Told(ask, error))

    def _connect(self, ask: Ask, end_seconds: float, untried: tuple[Address, ...]) -> None:
        if ask.tls is None and ask.url.startswith("https:"):
            # Never in the clear where TLS was meant.
            error = EngineUnreachable.by_tls(ask.url, TlsError(TlsFault.NO_TRUST))
            self._told.append(Told(ask, error))
            return
        answer, request = Answer(self._max_bytes), ask.request(keep=self._keep)
        why = "the host has no address"
        for number, (family, address) in enumerate(untried, 1):
            try:
                sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            except OSError as error:
                why = error.strerror or type(error).__name__
                continue
            with contextlib.ExitStack() as unless_kept:
                unless_kept.callback(sock.close)
                code = sock.connect_ex(address)
                if code not in (0, errno.EINPROGRESS):
                    why = os.strerror(code)
                    continue
                talk = _Talk(sock, ask, answer, end_seconds, request, untried[number:])
                if ask.tls is not None:
                    try:
                        talk.sock = talk.tls = ask.tls.channel(sock, ask.host)
                    except TlsError as error:
                        self._told.append(Told(ask, EngineUnreachable.by_tls(ask.url, error)))
                        return
                self._selector.register(talk.sock, selectors.EVENT_READ, talk)
                self._talks[ask.key] = talk
                unless_kept.pop_all()
            # On the same host the connection is there at once.
            self._send(talk)
            return
        self._told.append(Told(ask, EngineUnreachable(f"{ask.url}: {why}")))

    def _go_on_alone(self, talk: _Talk) -> None:
        if talk.answered:
            # Whatever a server says unasked, most likely that it hangs up.
            self._drop(talk)
            return
        with self._guarded(talk.ask):
            self._go_on(talk)

    def _go_on(self, talk: _Talk) -> None:
        if not talk.unsent:
            self._receive(talk)
        elif code := _connect_error(talk):
            self._lost(talk, os.strerror(code))
        else:
            self._send(talk)

    def _send(self, talk: _Talk) -> None:
        try:
            talk.unsent = talk.unsent[talk.sock.send(talk.unsent) :]
        except BlockingIOError:
            pass
        except TlsError as error:
            self._refuse(talk, EngineUnreachable.by_tls(talk.ask.url, error))
            return
        except OSError as error:
            self._lost(talk, error.strerror or type(error).__name__)
            return
        event = selectors.EVENT_WRITE if talk.unsent else selectors.EVENT_READ
        if talk.tls is not None:
            event = talk.tls.awaits(talk.unsent)
        if self._selector.get_key(talk.sock).events != event:
            self._selector.modify(talk.sock, event, talk)

    def _receive(self, talk: _Talk) -> None:
        """Read all that has come: what came in time is an answer, however late we get to it."""
        while self._receive_some(talk):
            pass

    def _receive_some(self, talk: _Talk) -> bool:
        """Read some of an answer; return whether more of it may be there already."""
        try:
            count = talk.sock.recv_into(self._buffer)
        except BlockingIOError:
            return False
        except TlsError as error:
            self._refuse(talk, EngineUnreachable.by_tls(talk.ask.url, error))
            return False
        except OSError as error:
            self._lost(talk, error.strerror or type(error).__name__)
            return False
        try:
            if count:
                whole = talk.answer.take(bytes(self._buffer[:count]))
            elif talk.reused and not talk.answer.begun:
                self._lost(talk, "")
                return False
            else:
                talk.answer.end()
                whole = True
        except AnswerError as error:
            self._fail(talk, str(error), error.tls_fault)
            return False
        if whole and talk.answer.status != 200:
            url, status = talk.ask.url, talk.answer.status
            # Which status it is, a server may change at each look.
            cause = f"{url}: does not answer 200"
            why = f"{url}: answers {status} instead of 200"
            refused = EngineRefused(why, cause=cause, status=status)
            self._hang_up(talk)
            self._told.append(Told(talk.ask, refused))
        elif whole:
            page = talk.answer.body
            if self._keep and talk.answer.keeps_open:
                talk.answered, talk.answer = True, Answer(self._max_bytes)
            else:
                self._hang_up(talk)
            self._told.append(Told(talk.ask, page))
        return not whole

    def _lost(self, talk: _Talk, why: str) -> None:
        """Try elsewhere: a kept connection may have been closed while we asked."""
        if talk.tls is not None and (said := talk.tls.last_words()) is not None:
            self._refuse(talk, EngineUnreachable.by_tls(talk.ask.url, said))
            return
        untried = talk.ask.addresses if talk.reused else talk.untried
        if untried and not talk.answer.begun:
            self._hang_up(talk)
            self._connect(talk.ask, talk.end_seconds, untried)
        else:
            # A server that speaks no TLS, or wants a certificate of ours, may just hang up.
            unanswered = talk.tls is not None and not talk.answer.begun
            self._fail(talk, why, TlsFault.HUNG_UP if unanswered else None)

    def _fail(self, talk: _Talk, why: str, tls_fault: TlsFault | None = None) -> None:
        self._refuse(talk, EngineUnreachable(f"{talk.ask.url}: {why}", tls_fault=tls_fault))

    def _refuse(self, talk: _Talk, error: EngineUnreachable) -> None:
        self._hang_up(talk)
        self._told.append(Told(talk.ask, error))

    def _hang_up(self, talk: _Talk) -> None:
        del self._talks[talk.ask.key]
        try:
            self._selector.unregister(talk.sock)
        finally:
            talk.sock.close()

    def _drop(self, talk: _Talk) -> None:
        """Hang up where no question depends on how that goes."""
        with contextlib.suppress(Exception):
            self._hang_up(talk)


def _same_server(kept: Ask, ask: Ask) -> bool:
    """Whether a connection for one question serves for another."""
    return kept.addresses == ask.addresses and kept.tls is ask.tls


def _connect_error(talk: _Talk) -> int:
    """The error number by which connecting has failed; 0 if it has not."""
    if isinstance(talk.sock, socket.socket):
        return talk.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    return talk.sock.connect_error()
