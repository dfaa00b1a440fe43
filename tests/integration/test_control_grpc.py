"""A real daemon steered over gRPC, on its Unix socket and on a port with TLS and a token."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import grpc.aio
from click.testing import CliRunner, Result

from disagg_cluster.cli.main import main
from disagg_cluster.control.client import new_request
from disagg_cluster.control.messages import DaemonStatus, PauseWorkers
from support.certificates import authority, write_files
from support.children import free_port
from support.grpc_control import TOKEN, client
from support.running_node import Page, running_node, wait_for
from support.two_planes import standin_node

WEB = "tls_server_config: {cert_file: cert.pem, key_file: key.pem}\n"


def asked(*words: str) -> Result:
    return CliRunner().invoke(main, [*words])


def test_a_daemon_is_controlled_over_its_unix_socket_and_the_network(folder: Path) -> None:
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
        there = ("--address", address, "--ca", str(folder / "ca.pem"))
        known = (*there, "--token-file", str(folder / "token"))
        told = asked("status", *known)
        assert "decode-0" in told.stdout, told.stderr
        assert asked("resume", "decode-0", *known).exit_code == 0
        refused = asked("pause", "decode-1", *known)
        assert (refused.exit_code, "did you mean decode-0?" in refused.stderr) == (3, True)
        nameless = asked("pause", "decode-0", *there)
        assert (nameless.exit_code, "--token-file" in nameless.stderr) == (3, True)
        stranger = asked("pause", "decode-0", "--address", address)
        assert (stranger.exit_code, "no daemon answers" in stranger.stderr) == (4, True)
        assert asked("pause", "decode-0", "--cert", "c.pem").exit_code == 2

        def counted() -> Page | None:
            page, labels = node.page(), {"reason": "unauthenticated"}
            return page if page.sum("disagg_control_refusals_total", **labels) else None

        page = wait_for(counted, "the refusal to be on the page")
        assert page.sum("disagg_collector_success", collector="control_grpc") == 1
        said = (folder / "daemon.log").read_text()
    assert "pause decode-0 by a client at 127.0.0.1: done" in said
    assert "a client at 127.0.0.1 is refused: it shows no token" in said
    assert TOKEN not in said
