"""Passes Dynamo workers' ForwardPassMetrics on, as a Dynamo vLLM worker publishes them itself.

Run with Dynamo's interpreter: `python dynamo_relay.py COMPONENT PORT`. Mock workers publish on
Dynamo's event plane only; the bodies are theirs, byte for byte, and so are the numbers.
"""

from __future__ import annotations

import asyncio
import sys

import zmq
from dynamo.common.forward_pass_metrics import decode
from dynamo.llm import FpmEventSubscriber
from dynamo.runtime import DistributedRuntime


async def relay(component: str, port: int) -> None:
    """Relay until killed."""
    publisher = zmq.Context.instance().socket(zmq.PUB)
    publisher.bind(f"tcp://*:{port}")
    runtime = DistributedRuntime(asyncio.get_running_loop(), "file", "tcp")
    subscriber = FpmEventSubscriber(runtime.endpoint(f"dynamo.{component}.generate"))
    while True:
        body = await asyncio.to_thread(subscriber.recv)
        if body is None:
            return
        number = decode(body).counter_id
        publisher.send_multipart((b"", number.to_bytes(8, "big"), body))


if __name__ == "__main__":
    asyncio.run(relay(sys.argv[1], int(sys.argv[2])))
