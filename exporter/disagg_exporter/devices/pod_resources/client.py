"""Asks the node's kubelet, over its socket, which container holds which GPU."""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import stat
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from disagg_exporter.collectors import CollectorHealth, DaemonExecutor
from disagg_exporter.devices.pod_resources.wire import (
    MAX_BYTES,
    GpuHolder,
    PodResourcesError,
    read_holders,
)
from disagg_exporter.model import CollectorStatus

if TYPE_CHECKING:
    import grpc

KUBELET_SOCKET = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
COLLECTOR = "kubelet"
INTERVAL_SECONDS = 2.0
DEADLINE_SECONDS = 5.0

# A restarting kubelet starts and ends no container: its last answer still holds.
KEEP_SECONDS = 60.0

_METHOD = "/v1.PodResourcesLister/List"


class KubeletLink:
    """One connection to a kubelet, until it is closed.

    Args:
        socket: Its podresources socket.

    Raises:
        PodResourcesError: There is no such socket, we lack the rights to it, or grpcio is not
            installed.
    """

    def __init__(self, socket: Path) -> None:
        _check_socket(socket)
        # Costs 26 MB of memory: imported only where there is a kubelet to ask.
        if importlib.util.find_spec("grpc") is None:
            raise PodResourcesError(
                "grpcio is not installed, so the kubelet cannot be asked which pod holds which "
                "GPU: pip install 'disagg-node[kubernetes]'"
            )
        import grpc

        self._socket = socket
        options = (
            ("grpc.max_receive_message_length", MAX_BYTES),
            ("grpc.enable_http_proxy", 0),
            ("grpc.enable_retries", 0),
        )
        self._channel = grpc.insecure_channel(f"unix:{socket}", options=options)
        self._list = self._channel.unary_unary(_METHOD)  # without serializers: plain bytes

    def close(self) -> None:
        """Close the connection, also during a call."""
        self._channel.close()

    def list_pods(self, deadline_seconds: float) -> bytes:
        """Return the kubelet's answer; raises `PodResourcesError`."""
        import grpc

        try:
            answer: bytes = self._list(b"", timeout=deadline_seconds)
        except grpc.RpcError as error:
            # At run time the error is also a call, which only grpcio's documentation says.
            raise PodResourcesError(_explain(error.code(), self._socket)) from None
        except ValueError:
            raise PodResourcesError("the connection to the kubelet is closed") from None
        return answer


class PodResources:
    """Polls which container holds which GPU.

    Args:
        socket: The kubelet's podresources socket; it may come and go.
        interval_seconds: Time between polls.
        clock_ns: Nanoseconds, monotonic.
    """

    def __init__(
        self,
        socket: Path = KUBELET_SOCKET,
        interval_seconds: float = INTERVAL_SECONDS,
        *,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._socket = socket
        self._interval_seconds = interval_seconds
        self._clock_ns = clock_ns
        self._holders: tuple[GpuHolder, ...] = ()
        self._answered_ns = 0
        self._health = CollectorHealth(
            COLLECTOR,
            logging.getLogger(__name__),
            recovered="reports which pod holds which GPU",
            untried="the kubelet was not asked yet",
            clock_ns=clock_ns,
        )

    def holders(self) -> tuple[GpuHolder, ...]:
        """Return which container holds which GPU; nothing while the kubelet does not answer.

        Its last answer stays valid for `KEEP_SECONDS`.
        """
        if self._clock_ns() - self._answered_ns > KEEP_SECONDS * 1e9:
            return ()
        return self._holders

    def status(self) -> CollectorStatus:
        """Return how the last poll went, collector `kubelet`."""
        return self._health.status()

    def why(self) -> str:
        """Return why there is no answer; empty while there is one."""
        return self._health.why

    async def run(self) -> None:
        """Poll until cancelled."""
        executor = DaemonExecutor(1, "kubelet")
        try:
            while True:
                # No answer of the kubelet may end the daemon.
                with self._health.round(), closing(KubeletLink(self._socket)) as link:
                    await self._ask_until_it_fails(link, executor)
                await asyncio.sleep(self._interval_seconds)
        finally:
            # The link is closed by now, which ends a call that may still be under way.
            executor.shutdown(wait=False)

    async def _ask_until_it_fails(self, link: KubeletLink, executor: DaemonExecutor) -> None:
        def answer() -> tuple[GpuHolder, ...]:
            return read_holders(link.list_pods(DEADLINE_SECONDS))

        loop = asyncio.get_running_loop()
        while True:
            asked_ns = self._clock_ns()
            self._holders = await loop.run_in_executor(executor, answer)
            self._answered_ns = self._clock_ns()
            self._health.succeed((self._answered_ns - asked_ns) / 1e9)
            await asyncio.sleep(self._interval_seconds)


def _check_socket(socket: Path) -> None:
    try:
        mode = socket.stat().st_mode
    except FileNotFoundError:
        raise PodResourcesError(
            f"{socket} is not there: mount the kubelet's pod-resources folder (the folder, not "
            "the socket, which is recreated when the kubelet restarts)"
        ) from None
    except PermissionError:
        raise PodResourcesError(f"{socket}: no right to see it: run as uid 0") from None
    except OSError as error:
        raise PodResourcesError(f"{socket}: {error.strerror}") from None
    if not stat.S_ISSOCK(mode):
        raise PodResourcesError(f"{socket} is no socket")


def _explain(code: grpc.StatusCode, socket: Path) -> str:
    match code.name:
        case "UNIMPLEMENTED":
            return "the kubelet has no podresources API v1: Kubernetes 1.20 or later has"
        case "UNAVAILABLE":
            return f"{socket}: nothing answers, or we have no right to ask (uid 0 is needed)"
        case "DEADLINE_EXCEEDED":
            return f"{socket}: no answer in {DEADLINE_SECONDS:g} s"
        case "RESOURCE_EXHAUSTED":
            return f"{socket}: the answer is larger than {MAX_BYTES} bytes, or asked for too often"
        case other:
            return f"{socket}: the kubelet answers {other}"
