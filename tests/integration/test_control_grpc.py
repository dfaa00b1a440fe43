"""A real daemon steered over gRPC, on its Unix socket and on a port with TLS and a token."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import grpc.aio

from disagg_cluster.control.client import new_request
from disagg_cluster.control.messages import DaemonStatus, PauseWorkers
from support.certificates import authority, write_files
from support.children import free_port
from support.grpc_control import TOKEN, client
from support.running_node import Page, running_node, wait_for
from support.two_planes import standin_node

WEB = "tls_server_config: {cert_file: cert.pem, key_file: key.pem}\n"


def test_a_daemon_is_steered_from_here_and_over_the_network(folder: Path) -> None:
    write_files(folder, {"web.yml": WEB, "token": TOKEN})
    node_file = standin_node(folder)
    address = f"localhost:{free_port()}"
    files = {"web_config": str(folder / "web.yml"), "token_file": str(folder / "token")}
    node_file["control"] = {"grpc": {"listen": address, **files}}
    trust = grpc.ssl_channel_credentials(authority().cert_pem.bytes())

    async def steer() -> None:
        async with client(f"unix:{folder / 'run' / 'control-grpc.socket'}") as here:
            told = await here.ask(new_request(DaemonStatus()))
            assert {each.worker.worker for each in told if each.worker} == {"prefill-0", "decode-0"}
        async with client(address, trust, TOKEN) as there:
            [paused] = await there.ask(new_request(PauseWorkers("decode-0")))
            assert paused.text == "paused: decode-0"
        async with client(address, trust) as stranger:
            code, _ = await stranger.refused(new_request(PauseWorkers("prefill-0")))
            assert code == "UNAUTHENTICATED"

    with running_node(node_file, folder) as node:
        node.wait_ready()
        asyncio.run(steer())

        def counted() -> Page | None:
            page, labels = node.page(), {"reason": "unauthenticated"}
            return page if page.sum("disagg_control_refusals_total", **labels) else None

        page = wait_for(counted, "the refusal to be on the page")
        assert page.sum("disagg_worker_paused") == 1
        assert page.sum("disagg_collector_success", collector="control_grpc") == 1
        said = (folder / "daemon.log").read_text()
    assert "pause decode-0 by a client at 127.0.0.1: done" in said
    assert "a client at 127.0.0.1 is refused: it shows no token" in said
    assert TOKEN not in said
