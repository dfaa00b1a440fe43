"""Accepts connections, and hands on those that have sent a request.

A client with a slow first request costs a descriptor and the bytes it has sent, but no thread; one
that sends nothing is never handed on.
"""

from __future__ import annotations

import contextlib
import errno
import selectors
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from disagg_exporter.collectors.health import CollectorHealth
from disagg_exporter.http.deadline_socket import DeadlineSocket
from disagg_exporter.http.server.admission import (
    ConnectionLimits,
    OpenConnection,
    Refusal,
    RefusalCounts,
    address_of,
    displaced_by,
    is_scarce,
    refusal_of,
)
from disagg_exporter.http.server.request import HeadError, RequestHead, RequestReader
from disagg_exporter.http.server.routes import refusal

_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
# After a refusal, further bytes from the client are read, within these limits: closing a connection
# with unread bytes resets it, and the answer is lost.
LINGER_BYTES = 65536
LINGER_SECONDS = 1.0
_SWEEP_SECONDS = 0.25
# Connections accepted before the waiting ones are checked again.
_AT_ONCE = 32


@dataclass(slots=True, eq=False)
class Arrival(OpenConnection):
    """A connection without a complete request, or one refused that may still be sending."""

    reader: RequestReader
    is_encrypted: bool
    is_refused: bool = False
    discarded_bytes: int = 0


HandOn = Callable[[Arrival, RequestHead | None], None]


@dataclass(slots=True, eq=False)
class Reception:
    """Holds connections until their first request, all on the thread of `run`.

    Args:
        listener: The listening socket; shut down to end the thread.
        limits: How many may wait.
        seconds: How long each may wait.
        is_encrypted: Whether clients must use TLS now: then one byte is enough to be handed on.
        hand_on: Takes over a connection, with its first request if that can be read.
        end_another: Ends a connection that was handed on, to free a descriptor.
        refusals: Counts the connections that are not handed on.
        health: Reports unexpected exceptions, which end one connection, not this thread.
    """

    listener: socket.socket
    limits: ConnectionLimits
    seconds: float
    is_encrypted: Callable[[], bool]
    hand_on: HandOn
    end_another: Callable[[], None]
    refusals: RefusalCounts
    health: CollectorHealth
    _arrivals: dict[int, Arrival] = field(default_factory=dict, init=False)
    _last_number: int = field(default=0, init=False)
    _swept_seconds: float = field(default=0.0, init=False)
    _selector: selectors.EpollSelector = field(default_factory=selectors.EpollSelector, init=False)

    def run(self, closing: threading.Event) -> None:
        """Accept and hand on until the listener is shut down and `closing` is set."""
        self.listener.setblocking(False)
        self._selector.register(self.listener, selectors.EVENT_READ)
        with self._selector:
            while not closing.is_set():
                for key, _ in self._selector.select(_SWEEP_SECONDS if self._arrivals else None):
                    with self.health.guard():
                        if key.data is None:
                            self._accept_some(closing)
                        elif key.data.number in self._arrivals:
                            self._go_on(key.data)
                self._end_late()
            for arrival in tuple(self._arrivals.values()):
                self._end(arrival)

    def _accept_some(self, closing: threading.Event) -> None:
        for _ in range(_AT_ONCE):
            try:
                accepted, peer = self.listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    self._make_room()
                # Closing, or out of descriptors: retrying at once would spin.
                closing.wait(0.1)
                return
            self._take_in(accepted, peer)

    def _take_in(self, accepted: socket.socket, peer: Any) -> None:
        if is_scarce(accepted.fileno()):
            self._make_room()
        client = DeadlineSocket(fileno=accepted.detach())
        try:
            address = address_of(peer)
            number = displaced_by(address, self._arrivals.values(), self.limits)
            if number is not None:
                self._displace(self._arrivals[number])
            self._last_number += 1
            who = (self._last_number, address, client, time.monotonic())
            arrival = Arrival(*who, RequestReader(client), self.is_encrypted())
            self._selector.register(client, selectors.EVENT_READ, arrival)
        except Exception:
            client.close()
            raise
        self._arrivals[arrival.number] = arrival

    def _make_room(self) -> None:
        if self._arrivals:
            self._displace(min(self._arrivals.values(), key=lambda one: one.since_seconds))
        else:
            self.end_another()

    def _go_on(self, arrival: Arrival) -> None:
        try:
            if arrival.is_refused:
                count = arrival.reader.discard(waits=False)
                arrival.discarded_bytes += count
                if count == 0 or arrival.discarded_bytes > LINGER_BYTES:
                    self._end(arrival)
            elif arrival.is_encrypted:
                self._release(arrival, None)
            elif not arrival.reader.receive(waits=False):
                self._end(arrival)
            elif (head := arrival.reader.next_head()) is not None:
                self._release(arrival, head)
        except HeadError as error:
            self._refuse(arrival, error)
        except BlockingIOError:
            pass
        except OSError:
            self._end(arrival)
        except Exception:
            self._end(arrival)
            raise

    def _release(self, arrival: Arrival, head: RequestHead | None) -> None:
        self._forget(arrival)
        if self.health.failures:
            self.health.succeed()
        try:
            self.hand_on(arrival, head)
        except Exception:
            arrival.client.close()
            raise

    def _refuse(self, arrival: Arrival, error: HeadError) -> None:
        self.refusals.add(refusal_of(error), arrival.address)
        arrival.is_refused = True
        arrival.since_seconds = time.monotonic()
        try:
            arrival.client.send(refusal(error), socket.MSG_DONTWAIT)
            arrival.client.shutdown(socket.SHUT_WR)
        except OSError:
            self._end(arrival)

    def _end_late(self) -> None:
        now_seconds = time.monotonic()
        if now_seconds - self._swept_seconds < _SWEEP_SECONDS:
            return
        self._swept_seconds = now_seconds
        for arrival in tuple(self._arrivals.values()):
            allowed_seconds = LINGER_SECONDS if arrival.is_refused else self.seconds
            if now_seconds - arrival.since_seconds >= allowed_seconds:
                if not arrival.is_refused:
                    self.refusals.add(Refusal.TIMEOUT, arrival.address)
                self._end(arrival)

    def _displace(self, arrival: Arrival) -> None:
        if not arrival.is_refused:
            self.refusals.add(Refusal.DISPLACED, arrival.address)
        self._end(arrival)

    def _forget(self, arrival: Arrival) -> None:
        if self._arrivals.pop(arrival.number, None) is not None:
            self._selector.unregister(arrival.client)

    def _end(self, arrival: Arrival) -> None:
        self._forget(arrival)
        with contextlib.suppress(OSError):
            arrival.client.close()
