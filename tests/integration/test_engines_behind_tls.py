"""Engines that serve TLS, as real processes: found, read and kept, and what is said where not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from disagg_cluster.config import Attach, EngineTls, ListedEngine
from disagg_cluster.inspect.node_scan import NodeScan, scan_node
from disagg_exporter.devices.source import NoDevices
from disagg_exporter.model import EngineStatus, TlsStatus
from support.certificates import write_files
from support.children import free_port
from support.fake_engines import FakeEngine, install
from support.running_node import running_node, wait_for


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Callable[..., FakeEngine]]:
    """Starts engines that serve TLS; ends them all."""
    install(tmp_path)
    write_files(tmp_path)
    with ExitStack() as stack:

        def start(kind: str = "vllm", certificate: str = "cert.pem") -> FakeEngine:
            key = certificate.replace("cert.pem", "key.pem")
            files = ("--ssl-certfile", str(tmp_path / certificate), "--ssl-keyfile")
            arguments = (*files, str(tmp_path / key))
            return stack.enter_context(FakeEngine(kind, tmp_path, arguments))

        yield start


def looked(attach: Attach, engine: FakeEngine) -> EngineStatus:
    """An engine as a look without a daemon shows it, once it has been asked for its page."""

    def one() -> EngineStatus | None:
        look: NodeScan = scan_node(NoDevices(), attach)
        at = [e for e in look.engines if e.pid == engine.process.pid]
        return at[0] if at and at[0].tls is not None else None

    return wait_for(one, f"the engine on port {engine.port}")


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_an_engine_with_tls_is_scraped_with_its_pinned_certificate(
    engine: Callable[..., FakeEngine], kind: str
) -> None:
    status = looked(Attach(kubernetes="never"), engine(kind))

    assert status.tls == TlsStatus("pinned", "")
    assert status.up
    assert status.page is not None


def test_a_listed_engine_is_scraped_with_the_configured_ca(
    engine: Callable[..., FakeEngine], tmp_path: Path
) -> None:
    started = engine()
    ca = EngineTls(ca_file=str(tmp_path / "ca.pem"), server_name="localhost")
    listed = ListedEngine(url=f"https://127.0.0.1:{started.port}", tls=ca)

    status = looked(Attach(kubernetes="never", endpoints=(listed,)), started)

    assert (status.tls, status.up) == (TlsStatus("ca", ""), True)


def test_an_engine_with_an_untrusted_certificate_is_not_scraped_with_the_reason(
    engine: Callable[..., FakeEngine], tmp_path: Path
) -> None:
    started = engine()
    stranger = EngineTls(ca_file=str(tmp_path / "other-cert.pem"), server_name="localhost")
    listed = ListedEngine(url=f"https://127.0.0.1:{started.port}", tls=stranger)

    status = looked(Attach(kubernetes="never", endpoints=(listed,)), started)

    assert (status.tls, status.up) == (TlsStatus("ca", "certificate_untrusted"), False)


def test_an_engine_serving_another_certificate_than_its_file_is_not_scraped(
    engine: Callable[..., FakeEngine], tmp_path: Path
) -> None:
    started = engine()
    wait_for(lambda: looked(Attach(kubernetes="never"), started).up, "the engine to be read")
    (tmp_path / "cert.pem").write_bytes((tmp_path / "other-cert.pem").read_bytes())

    status = looked(Attach(kubernetes="never"), started)

    assert (status.tls, status.up) == (TlsStatus("pinned", "certificate_not_of_its_file"), False)


def test_a_launched_worker_with_tls_becomes_ready_and_is_scraped(tmp_path: Path) -> None:
    write_files(tmp_path)
    files = ["--ssl-certfile", str(tmp_path / "cert.pem")]
    worker = {
        "name": "w",
        "engine": "standin",
        "role": "mixed",
        "model": "tiny",
        "port": free_port(),
        "args": [*files, "--ssl-keyfile", str(tmp_path / "key.pem")],
    }
    node = {
        "devices": "cpu",
        "run_dir": str(tmp_path / "run"),
        "listen": {"metrics": f"127.0.0.1:{free_port()}"},
        "workers": [worker],
    }
    with running_node(node, tmp_path) as running:
        running.wait_ready()
        wait_for(
            lambda: running.page().sum("disagg_engine_tls_info", verified="pinned", fault=""),
            "its page, known by its own certificate",
        )
        wait_for(
            lambda: running.page().sum("disagg_collector_success", collector="engine:w"), "its page"
        )
        assert running.page().sum("disagg_worker_restarts_total", worker="w") == 0
