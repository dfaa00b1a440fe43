"""Delivers a failure to a URL: one POST with a deadline, on a thread that is never awaited."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import http.client
import socket
import ssl
from concurrent.futures import Future, InvalidStateError
from urllib.parse import unquote, urlsplit

from disagg_cluster.supervisor.hooks.failure_notifier import HookError
from disagg_exporter import __version__
from disagg_exporter.collectors import DaemonThreads, NoThreadError

# A delivery stuck in name resolution must not hold up the next.
_THREADS = 2


class PostDelivery:
    """Sends each failure as JSON to a URL; any answer 2xx is a delivery.

    Args:
        url: http or https; a user and a password in it are sent as basic authentication.
        deadline_seconds: The deadline of the whole delivery.
    """

    def __init__(self, url: str, deadline_seconds: float) -> None:
        parts = urlsplit(url)
        self._secure = parts.scheme == "https"
        self._host, self._port = parts.hostname or "", parts.port
        self._path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._headers = {
            "Content-Type": "application/json",
            "User-Agent": f"disagg-node/{__version__}",
        }
        if parts.username is not None:
            pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            self._headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        self._deadline_seconds = deadline_seconds
        self._threads = DaemonThreads(_THREADS, "failure-hook")

    async def deliver(self, data: bytes) -> None:
        """Send it and check the answer, or raise `HookError`."""
        answer: Future[int] = Future()
        link = self._connection()

        def job() -> None:
            # A delivery given up meanwhile accepts no answer any more.
            with contextlib.suppress(InvalidStateError), contextlib.closing(link):
                try:
                    if not answer.done():
                        link.connect()
                    # Name resolution may be slow: a delivery given up meanwhile is not sent.
                    if not answer.done():
                        answer.set_result(self._post(link, data))
                except Exception as error:  # noqa: BLE001 - passed on to the caller
                    answer.set_exception(error)

        try:
            self._threads.run(job)
            async with asyncio.timeout(self._deadline_seconds):
                status = await asyncio.wrap_future(answer)
        except NoThreadError as error:
            raise HookError(str(error)) from None
        except TimeoutError:
            raise HookError(
                f"{self._host} did not answer within {self._deadline_seconds:g} s"
            ) from None
        except (OSError, http.client.HTTPException) as error:
            why = (error.strerror if isinstance(error, OSError) else "") or type(error).__name__
            raise HookError(f"{self._host}: {why}") from None
        finally:
            _hang_up(link)
        if not 200 <= status < 300:
            raise HookError(f"{self._host} answers {status}")

    def _connection(self) -> http.client.HTTPConnection:
        seconds = self._deadline_seconds
        if self._secure:
            context = ssl.create_default_context()
            return http.client.HTTPSConnection(
                self._host, self._port, timeout=seconds, context=context
            )
        return http.client.HTTPConnection(self._host, self._port, timeout=seconds)

    def _post(self, link: http.client.HTTPConnection, data: bytes) -> int:
        link.request("POST", self._path, data, self._headers)
        return link.getresponse().status


def _hang_up(link: http.client.HTTPConnection) -> None:
    """Wake a thread that still waits for the other end."""
    if link.sock is not None:
        with contextlib.suppress(OSError):
            link.sock.shutdown(socket.SHUT_RDWR)
