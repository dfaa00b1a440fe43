"""What watching costs a daemon: `make bench-control`.

A real daemon over two stand-in engines, served on all its listeners. For five minutes ten clients
watch it over the Unix socket and ten over gRPC (TLS and a token), the metrics page is scraped fifty
times a second over kept connections, and a worker is paused and resumed every five seconds, so that
there are changes to report. Its memory must stay flat and its rounds in time.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import http.client
import itertools
import re
import statistics
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import grpc
from bench.faults import processes
from bench.report import finish

from disagg_cluster.control.client import ask, new_request
from disagg_cluster.control.messages import PauseWorkers, ResumeWorkers, Verb, WatchStatus
from disagg_cluster.control.remote.coding import METHODS, decode_answer, encode_call
from support.certificates import authority, write_files
from support.children import free_port
from support.grpc_control import TOKEN, client
from support.running_node import RunningNode, running_node
from support.two_planes import standin_node

WATCHES = 20
SCRAPES_PER_SECOND = 50
SCRAPERS = 10
CHANGE_SECONDS = 5.0
DEVICES_SECONDS = 0.5
"""Slower than usual: the page shows each round of four snapshots a second."""
PAGES_SECONDS = 1.0
SETTLED = 0.2
"""Which part of the time is ignored: connections are made, caches fill."""
BARS = {
    "rss_above_mean_percent": 5.0,
    "rss_below_mean_percent": 5.0,
    "longest_device_gap_intervals": 2.0,
    "longest_page_gap_intervals": 2.0,
    "watches_ended": 0.0,
    "scrapes_failed": 0.0,
}
_SUCCESS = re.compile(
    rb"^disagg_collector_last_success_timestamp_seconds"
    rb'\{collector="((?:cpu|engine:)[^"]*)"\} (\S+)$',
    re.MULTILINE,
)
WEB = "tls_server_config: {cert_file: cert.pem, key_file: key.pem}\n"


class Watched:
    """What all clients observed."""

    def __init__(self) -> None:
        self.answers: Counter[int] = Counter()
        self.ended: list[str] = []
        self.scrapes = self.failed = 0
        self.scrape_seconds: list[float] = []
        self.rss_mib: list[float] = []
        self.successes: dict[str, list[float]] = {}
        self.closing = threading.Event()
        self._lock = threading.Lock()

    def see(self, page: bytes) -> None:
        """Record when each collector last succeeded."""
        with self._lock:
            for name, at in _SUCCESS.findall(page):
                seen = self.successes.setdefault(name.decode(), [])
                if not seen or seen[-1] < float(at):
                    seen.append(float(at))

    def longest_gap(self, prefix: str, since: float) -> float | None:
        """Return the longest time in seconds between successes of collectors with this prefix."""
        gaps = [
            later - earlier
            for name, seen in self.successes.items()
            if name.startswith(prefix)
            for earlier, later in itertools.pairwise(seen)
            if earlier >= since
        ]
        return max(gaps, default=None)


def watch_here(number: int, socket: Path, watched: Watched) -> None:
    """Watch over the Unix socket until the watch ends."""
    try:
        for _ in ask(socket, new_request(WatchStatus()), 35.0):
            watched.answers[number] += 1
            if watched.closing.is_set():
                return
    except Exception as error:  # noqa: BLE001 - any error ends the watch and is reported
        watched.ended.append(str(error))


async def watch_there(number: int, address: str, watched: Watched) -> None:
    """Watch over gRPC until the watch ends."""
    trust = grpc.ssl_channel_credentials(authority().cert_pem.bytes())
    token = (("authorization", f"Bearer {TOKEN}"),)
    async with client(address, trust, TOKEN) as asked:
        call = asked.channel.unary_stream(METHODS["watch"].path)
        try:
            async for answer in call(encode_call(new_request(WatchStatus())), metadata=token):
                decode_answer(answer)
                watched.answers[number] += 1
                if watched.closing.is_set():
                    return
        except grpc.aio.AioRpcError as error:
            watched.ended.append(str(error.details()))


def scrape(number: int, url: str, watched: Watched) -> None:
    """Scrape on a kept connection, at this scraper's part of the total rate."""
    place = urlsplit(url)
    link = http.client.HTTPConnection(str(place.hostname), place.port, timeout=10)
    due = time.monotonic() + number / SCRAPES_PER_SECOND
    while not watched.closing.wait(max(due - time.monotonic(), 0)):
        due += SCRAPERS / SCRAPES_PER_SECOND
        began = time.monotonic()
        try:
            link.request("GET", "/metrics")
            answer = link.getresponse()
            watched.see(answer.read())
            watched.failed += answer.status != 200
        except OSError:
            watched.failed += 1
            link.close()
        watched.scrapes += 1
        watched.scrape_seconds.append(time.monotonic() - began)


def change(node: RunningNode, socket: Path, watched: Watched) -> None:
    """Cause changes to report, and sample the memory."""
    verbs: list[Verb] = [PauseWorkers("decode-0"), ResumeWorkers("decode-0")]
    turn, next_change = 0, time.monotonic()
    while not watched.closing.wait(0.2):
        watched.rss_mib.append(resident_mib(node.process.pid))
        if time.monotonic() >= next_change:
            list(ask(socket, new_request(verbs[turn % 2]), 35.0))
            turn, next_change = turn + 1, next_change + CHANGE_SECONDS


def resident_mib(pid: int) -> float:
    """Return the resident memory of a process."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


@contextlib.contextmanager
def threads(started: Sequence[threading.Thread], watched: Watched) -> Iterator[None]:
    """Run the threads until the block ends."""
    for thread in started:
        thread.start()
    try:
        yield
    finally:
        watched.closing.set()
        for thread in started:
            thread.join(15)


def measured(seconds: float) -> dict[str, float | None]:
    """Run everything for this long; return the figures."""
    watched = Watched()
    with tempfile.TemporaryDirectory(prefix="dn-") as made:
        folder = Path(made)
        write_files(folder, {"web.yml": WEB, "token": TOKEN})
        address = f"localhost:{free_port()}"
        files = {"web_config": str(folder / "web.yml"), "token_file": str(folder / "token")}
        node_file = standin_node(folder)
        node_file["control"] = {"grpc": {"listen": address, **files}}
        node_file["intervals"] = {
            "devices_seconds": DEVICES_SECONDS,
            "pages_seconds": PAGES_SECONDS,
        }
        with running_node(node_file, folder) as node:
            node.wait_ready()
            return played(node, folder / "run" / "control.socket", address, seconds, watched)


def played(
    node: RunningNode, socket: Path, address: str, seconds: float, watched: Watched
) -> dict[str, float | None]:
    """Run all clients against a running node for this long; return the figures."""

    async def there() -> None:
        half = range(WATCHES // 2, WATCHES)
        watches = [asyncio.create_task(watch_there(n, address, watched)) for n in half]
        await asyncio.to_thread(watched.closing.wait)
        for task in watches:
            task.cancel()
        await asyncio.gather(*watches, return_exceptions=True)

    started = [
        threading.Thread(target=watch_here, args=(number, socket, watched), daemon=True)
        for number in range(WATCHES // 2)
    ]
    started += [
        threading.Thread(target=scrape, args=(number, node.page_url, watched), daemon=True)
        for number in range(SCRAPERS)
    ]
    started.append(threading.Thread(target=change, args=(node, socket, watched), daemon=True))
    started.append(threading.Thread(target=asyncio.run, args=(there(),), daemon=True))
    began, cpu_seconds = time.time(), node_cpu(node)
    with threads(started, watched):
        time.sleep(seconds)
        cpu_seconds = node_cpu(node) - cpu_seconds
        answers, ended = dict(watched.answers), len(watched.ended)
    rss = watched.rss_mib[int(len(watched.rss_mib) * SETTLED) :]
    mean, since = statistics.fmean(rss), began + seconds * SETTLED
    device_gap = watched.longest_gap("cpu", since)
    page_gap = watched.longest_gap("engine:", since)
    return {
        "rss_mib": mean,
        "rss_above_mean_percent": (max(rss) / mean - 1) * 100,
        "rss_below_mean_percent": (1 - min(rss) / mean) * 100,
        "longest_device_gap_intervals": None
        if device_gap is None
        else device_gap / DEVICES_SECONDS,
        "longest_page_gap_intervals": None if page_gap is None else page_gap / PAGES_SECONDS,
        "watches_ended": float(ended + WATCHES - len(answers)),
        "fewest_answers": float(min(answers.values(), default=0)),
        "scrapes_failed": float(watched.failed),
        "scrapes_per_second": watched.scrapes / seconds,
        "scrape_p99_seconds": statistics.quantiles(watched.scrape_seconds, n=100)[98],
        "daemon_cores": cpu_seconds / seconds,
    }


def node_cpu(node: RunningNode) -> float:
    """Return the CPU seconds that the daemon has used."""
    return node.page().sum("process_cpu_seconds_total")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark, print and write its figures; 1 if a bar is missed."""
    parser = argparse.ArgumentParser(prog="bench.control", description=__doc__)
    parser.add_argument("--seconds", type=float, default=300.0, help="how long to run")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    options = parser.parse_args(arguments)
    processes.adopt_orphans()
    processes.end_with_parent()
    found = measured(options.seconds)
    path = Path("bench/out/control.json")
    return finish(path, found, BARS, as_json=options.json, seconds=options.seconds)


if __name__ == "__main__":
    raise SystemExit(main())
