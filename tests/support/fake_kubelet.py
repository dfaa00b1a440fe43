"""A kubelet's podresources socket over real gRPC, with pods that a test adds and removes.

The messages are made by a separate encoder, checked against a golden message of protobuf's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SERVICE = "v1.PodResourcesLister"


@dataclass(frozen=True)
class Given:
    """The devices of a container: device plugin ids, or devices of a claim."""

    pod: str
    devices: Sequence[str] = ()
    namespace: str = "llm"
    container: str = "engine"
    resource: str = "nvidia.com/gpu"
    claimed: Sequence[str] = ()
    cdi: Sequence[str] = ()
    driver: str = "gpu.nvidia.com"


def field(number: int, value: str | bytes) -> bytes:
    """Return one field with bytes."""
    data = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def number_field(number: int, value: int) -> bytes:
    """Return one field with a number."""
    return _varint(number << 3) + _varint(value)


def answer(given: Iterable[Given]) -> bytes:
    """Return a `ListPodResourcesResponse`, with more fields than those that we read."""
    return b"".join(field(1, _pod(each)) for each in given)


def _pod(each: Given) -> bytes:
    topology = field(3, field(1, number_field(1, 1)))
    container = field(1, each.container)
    if each.devices:
        ids = b"".join(field(2, device) for device in each.devices)
        container += field(2, field(1, each.resource) + ids + topology)
    container += number_field(3, 7) + field(4, field(1, "memory") + number_field(2, 1 << 40))
    for at, name in enumerate(each.claimed or each.cdi):
        cdi = field(1, field(1, each.cdi[at])) if each.cdi else b""
        named = field(4, name) if each.claimed else b""
        claimed = cdi + field(2, each.driver) + field(3, "pool") + named
        container += field(5, field(2, "claim") + field(3, each.namespace) + field(4, claimed))
    return field(1, each.pod) + field(2, each.namespace) + field(3, container)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


class FakeKubelet:
    """The kubelet's next answer: `given`, or `message` unchanged, or the gRPC code `refuses`."""

    def __init__(self) -> None:
        self.given: list[Given] = []
        self.message: bytes | None = None
        self.refuses = ""
        self.asked = 0

    def list_pods(self, _request: bytes, context: Any) -> bytes:
        """Answer one `List`."""
        import grpc

        self.asked += 1
        if self.refuses:
            context.abort(grpc.StatusCode[self.refuses], "refused by the test")
        return answer(self.given) if self.message is None else self.message


@contextlib.contextmanager
def fake_kubelet(socket: Path, *, implemented: bool = True) -> Iterator[FakeKubelet]:
    """Serve on `socket` until the block ends; without the method at all if not `implemented`."""
    import grpc

    kubelet = FakeKubelet()
    server = grpc.server(
        ThreadPoolExecutor(2), options=[("grpc.max_send_message_length", 64 << 20)]
    )
    method = grpc.unary_unary_rpc_method_handler(kubelet.list_pods)
    handlers = {"List": method} if implemented else {}
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE, handlers)])
    server.add_insecure_port(f"unix:{socket}")
    server.start()
    try:
        yield kubelet
    finally:
        server.stop(None).wait(10)
