"""Scrapers, and the cost of a scrape to the daemon and to its peers."""

from __future__ import annotations

import contextlib
import http.client
import os
import subprocess
import time
import venv
from collections.abc import Iterator
from dataclasses import dataclass

from bench.node.rig import ROOT, Rig
from bench.node.usage import cpu_seconds, thread_cpu_seconds, threads

from disagg_cluster.demo.nodefile import free_ports

NODE_EXPORTER, NVITOP = "prometheus-node-exporter", "nvitop-exporter"
ENVIRONMENT = ROOT / ".venv-bench"
PACKAGE = "nvitop-exporter==1.7.2"
# The headers of a current Prometheus.
_HEADERS = {
    "Accept": "application/openmetrics-text;version=1.0.0;q=0.6,"
    "text/plain;version=0.0.4;q=0.4,*/*;q=0.1",
    "Accept-Encoding": "gzip",
}
_IDLE_SECONDS = 5.0
_PATIENCE_SECONDS = 30.0


class Scraper:
    """One kept-open connection to an exporter."""

    def __init__(self, address: str) -> None:
        self._connection = http.client.HTTPConnection(address, timeout=10)

    def scrape(self) -> bytes:
        """Scrape the page once; return the body as received."""
        self._connection.request("GET", "/metrics", headers=_HEADERS)
        answer = self._connection.getresponse()
        body = answer.read()
        if answer.status != http.client.OK:
            raise SystemExit(f"a scrape was answered with {answer.status}")
        return body

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


@dataclass(slots=True)
class Cost:
    """The CPU that scrapes of one exporter cost, without its background use."""

    seconds: float = 0.0
    scrapes: int = 0

    @property
    def milliseconds(self) -> float:
        """Return the CPU milliseconds of one scrape."""
        return self.seconds / max(self.scrapes, 1) * 1e3


class OursCosted:
    """Scrapes the daemon and reads the CPU time of the thread that answers this connection."""

    def __init__(self, rig: Rig) -> None:
        before = threads(rig.pid)
        self._pid = rig.pid
        self._scraper = Scraper(rig.url.split("/")[2])
        self._scraper.scrape()
        # Another page thread may start in between, but only ours works when we scrape.
        new = sorted(threads(rig.pid) - before)
        self._thread = max(new, key=self._grown_by_a_scrape)
        self.cost = Cost()

    def scrape(self) -> bytes:
        """Scrape once; return the page as received."""
        before = thread_cpu_seconds(self._pid, self._thread)
        body = self._scraper.scrape()
        # After the last byte the thread runs for a moment, until it waits for the next request.
        time.sleep(0.005)
        self.cost.seconds += thread_cpu_seconds(self._pid, self._thread) - before
        self.cost.scrapes += 1
        return body

    def close(self) -> None:
        """Close the connection."""
        self._scraper.close()

    def _grown_by_a_scrape(self, thread: int) -> float:
        before = thread_cpu_seconds(self._pid, thread)
        time.sleep(0.3)
        self._scraper.scrape()
        time.sleep(0.005)
        return thread_cpu_seconds(self._pid, thread) - before


class PeerCosted:
    """Scrapes another exporter; its CPU without scrapes is measured first and subtracted."""

    def __init__(self, pid: int, address: str) -> None:
        self._pid = pid
        self._scraper = Scraper(address)
        for _ in range(3):
            self._scraper.scrape()
        began, before = time.monotonic(), cpu_seconds(pid)
        time.sleep(_IDLE_SECONDS)
        self.idle_share = (cpu_seconds(pid) - before) / (time.monotonic() - began)
        self._began, self._before = time.monotonic(), cpu_seconds(pid)
        self._cost = Cost()

    def scrape(self) -> None:
        """Scrape once."""
        self._scraper.scrape()
        self._cost.scrapes += 1

    @property
    def cost(self) -> Cost:
        """Return the cost so far."""
        spent = cpu_seconds(self._pid) - self._before
        idle = self.idle_share * (time.monotonic() - self._began)
        self._cost.seconds = max(spent - idle, 0.0)
        return self._cost

    def close(self) -> None:
        """Close the connection."""
        self._scraper.close()


@contextlib.contextmanager
def node_exporter() -> Iterator[PeerCosted]:
    """Debian's node_exporter with its defaults."""
    address = f"127.0.0.1:{free_ports(1)[0]}"
    argv = [NODE_EXPORTER, f"--web.listen-address={address}"]
    with _running(argv, address) as peer:
        yield peer


@contextlib.contextmanager
def nvitop_exporter(rig: Rig) -> Iterator[PeerCosted]:
    """nvitop-exporter under the same stub driver."""
    program = ENVIRONMENT / "bin" / "nvitop-exporter"
    if not program.exists():
        if not (ENVIRONMENT / "bin" / "python").exists():
            venv.create(ENVIRONMENT, with_pip=True)
        pip = [ENVIRONMENT / "bin" / "python", "-m", "pip", "install", "--quiet", PACKAGE]
        subprocess.run(pip, check=True)
    port = free_ports(1)[0]
    argv = [str(program), "--hostname", "127.0.0.1", "--port", str(port)]
    with _running(argv, f"127.0.0.1:{port}", rig.driver_environment) as peer:
        yield peer


@contextlib.contextmanager
def _running(
    argv: list[str], address: str, more: dict[str, str] | None = None
) -> Iterator[PeerCosted]:
    process = subprocess.Popen(
        argv,
        env={**os.environ, **(more or {})},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        until = time.monotonic() + _PATIENCE_SECONDS
        while True:
            if process.poll() is not None or time.monotonic() > until:
                raise SystemExit(f"{argv[0]} does not serve")
            with contextlib.suppress(OSError):
                Scraper(address).scrape()
                break
            time.sleep(0.1)
        peer = PeerCosted(process.pid, address)
        yield peer
        peer.close()
    finally:
        process.terminate()
        process.wait(_PATIENCE_SECONDS)
