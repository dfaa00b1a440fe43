"""Engines serve on whatever becomes of the daemon, and the next daemon goes on with them."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from disagg_cluster.daemon.stop import end_workers
from disagg_cluster.host.processes import procfs
from disagg_cluster.host.run_dir.layout import RunFolder
from disagg_cluster.host.run_dir.lock import holder
from disagg_cluster.prometheus.local_server import find_prometheus
from disagg_cluster.prometheus.prometheus_api import PrometheusError
from disagg_exporter.http.client.scrape import fetch
from support.children import free_port, wait_readable
from support.prometheus_query import query
from support.running_node import DISAGG_NODE, Page, prometheus_beside
from support.tiny_daemons import NAMES, TinyDaemons
from support.two_planes import Clients, Scraper, node, standin_node, wait_until


def the_one(page: Page, name: str, **labels: str) -> float:
    [value] = [v for have, v in page.samples.get(name, []) if labels.items() <= have.items()]
    return value


@pytest.mark.prometheus
def test_killed_daemons_lose_no_request_and_no_gpu_second(folder: Path) -> None:
    """Daemons are killed twice under load, and one leaves its engines as in an upgrade.

    The totals of the engines are the reference; a real Prometheus sums what it scraped.
    """
    if find_prometheus(os.environ, shutil.which) is None:
        pytest.skip("prometheus is not installed: apt-get install prometheus")
    node_file = standin_node(folder, on_sigterm="leave", devices="sim")
    for number, worker in enumerate(node_file["workers"]):
        worker["gpus"] = [number]
    with node(node_file, folder) as planes:
        planes.daemon.wait_ready()
        urls = planes.daemon.url("prefill-0"), planes.daemon.url("decode-0")
        with (
            prometheus_beside(planes.daemon, folder) as prometheus,
            Scraper(planes.daemon).running() as scraper,
        ):
            # No increase includes what was counted before the first scrape.
            wait_until("a first scrape", lambda: scraped(prometheus) > 0)
            with Clients(*urls).running() as clients:
                wait_until("a busy node", lambda: decode_seconds(scraper) > 2)
                pids = planes.pids()
                started = the_one(
                    scraper.pages[-1], "disagg_worker_start_timestamp_seconds", worker="decode-0"
                )
                # The second daemon dies before it has committed the seconds left by the first.
                for how in (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM):
                    planes.end_daemon(how)
                    enough = clients.completed + 4
                    wait_until("requests without a daemon", lambda n=enough: clients.completed > n)
                    planes.next_daemon().wait_ready()
            last = planes.daemon.wait_settled()
            wait_until("a scrape of it", lambda: watermark(scraper) >= watermark(last))
            wait_until("Prometheus", lambda: scraped(prometheus) >= watermark(last) - 0.001)
            found, resets = query(prometheus, INCREASE), query(prometheus, RESETS)
        # A daemon that has just started shows nothing yet.
        pages = [page for page in scraper.pages if "disagg_gpu_info" in page.samples]

        assert planes.pids() == pids
        assert clients.failures == []
        assert last.sum("disagg_worker_restarts_total") == 0
        assert the_one(
            last, "disagg_worker_start_timestamp_seconds", worker="decode-0"
        ) == pytest.approx(started, abs=0.02)
        assert "adopted from the daemon before" in planes.daemon.log()
        assert steps_back(pages, COMMITTED) == []

        own = {"prefill": 0.0, "decode": 0.0}
        for labels, seconds in last.samples["disagg_engine_step_seconds_total"]:
            own["prefill" if labels["kind"] == "context" else "decode"] += seconds
        booked = {phase: last.sum("disagg_engine_gpu_seconds_total", phase=phase) for phase in own}
        assert booked == pytest.approx(own, rel=0.02)
        assert {labels["phase"]: value for labels, value in found} == pytest.approx(booked)
        assert [value for _, value in resets] == [0.0]
        for name, sample in (("prefill", "prompt"), ("decode", "generation")):
            tokens = last.sum("disagg_engine_phase_tokens_total", engine=f"{name}-0", phase=name)
            assert tokens == engine_counter(planes.daemon.url(f"{name}-0"), f"{sample}_tokens")

        for gpu in {labels["gpu"] for labels, _ in last.samples["disagg_gpu_info"]}:
            [start] = {start_of(page, gpu) for page in pages}
            sums = last.sum("disagg_gpu_phase_seconds_total", gpu=gpu)
            unobserved = last.sum("disagg_gpu_unobserved_seconds_total", gpu=gpu)
            until = the_one(last, "disagg_gpu_watermark_timestamp_seconds", gpu=gpu)
            assert sums + unobserved == pytest.approx(until - start, abs=0.01)
            without = last.sum("disagg_gpu_unobserved_seconds_total", gpu=gpu, reason="no_daemon")
            assert without == unobserved
        assert planes.stop()[0] == 0
        assert list(planes.run_dir.glob("accounting*")) == []


# Prompts' tokens are counted from engines' pages, anew by each daemon.
COMMITTED = (
    "disagg_(gpu|node)_(?!prompt_)|disagg_engine_(gpu|phase|step|interference|expected|compared)"
)
WATERMARK = "min(disagg_gpu_watermark_timestamp_seconds)"
SECONDS = "disagg_engine_gpu_seconds_total[10m]"
# As `increase()`, which guesses what is before the first sample and after the last one, without
# its guess: the longer a busy machine makes a scrape wait, the more it is.
INCREASE = f"sum by (phase) (max_over_time({SECONDS}) - min_over_time({SECONDS}))"
RESETS = f"sum(resets({SECONDS}))"


def decode_seconds(scraper: Scraper) -> float:
    """What the page said last."""
    if not scraper.pages:
        return 0.0
    return scraper.pages[-1].sum("disagg_engine_gpu_seconds_total", engine="decode-0")


def watermark(page: Page | Scraper) -> float:
    if isinstance(page, Scraper):
        page = page.pages[-1]
    marks = page.samples.get("disagg_gpu_watermark_timestamp_seconds", [])
    return min((value for _, value in marks), default=0.0)


def scraped(prometheus: str) -> float:
    """The watermark that Prometheus knows; 0 while it knows none, or does not answer yet."""
    with contextlib.suppress(PrometheusError):
        return min((value for _, value in query(prometheus, WATERMARK)), default=0.0)
    return 0.0


def start_of(page: Page, gpu: str) -> float:
    return the_one(page, "disagg_gpu_start_timestamp_seconds", gpu=gpu)


def engine_counter(url: str, name: str) -> float:
    """What an engine's own page says it has counted."""
    families = text_string_to_metric_families(fetch(f"{url}/metrics", 5.0).decode())
    samples = (sample for family in families for sample in family.samples)
    return sum(sample.value for sample in samples if sample.name == f"vllm:{name}_total")


def outcome(run_dir: Path, **changes: object) -> dict[str, object]:
    nothing: dict[str, object] = {"daemon": None, "workers": [], "left": [], "unnamed": []}
    return {"run_dir": str(run_dir), **nothing, **changes}


def test_a_killed_engine_is_restarted_and_no_counter_decreases(folder: Path) -> None:
    with node(standin_node(folder), folder) as planes:
        planes.daemon.wait_ready()
        urls = planes.daemon.url("prefill-0"), planes.daemon.url("decode-0")
        with Clients(*urls).running() as clients, Scraper(planes.daemon).running() as scraper:
            wait_until("busy books", lambda: decode_seconds(scraper) > 1)
            before = decode_seconds(scraper)
            os.kill(planes.pids()["decode-0"], signal.SIGKILL)

            def again() -> bool:
                page = scraper.pages[-1]
                up = the_one(page, "disagg_worker_state", worker="decode-0", state="ready")
                return up == 1 and page.sum("disagg_worker_restarts_total") == 1

            wait_until("the engine to be ready again", again)
            served = clients.completed
            wait_until("requests to be served again", lambda: clients.completed > served + 5)
            wait_until("its books to go on", lambda: decode_seconds(scraper) > before + 3)

        pages = scraper.pages
        assert the_one(pages[-1], "disagg_worker_restarts_total", worker="decode-0") == 1
        assert the_one(pages[-1], "disagg_worker_restarts_total", worker="prefill-0") == 0
        assert all("decode" in failure for failure in clients.failures)
        assert steps_back(pages) == []


def test_engines_left_by_a_daemon_are_adopted_or_ended_on_request(folder: Path) -> None:
    """SIGTERM with `on_sigterm: leave`, a worker out of the file, `stop`, `stop --workers`."""
    node_file = standin_node(folder, on_sigterm="leave")
    for worker in node_file["workers"]:
        worker["role"] = "mixed"
    with node(node_file, folder) as planes:
        planes.daemon.wait_ready()
        pids = planes.pids()
        second = subprocess.run(
            [*DISAGG_NODE, "start", "-c", str(folder / "node.yaml")],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (second.returncode, second.stdout) == (1, "")
        pid = planes.daemon.process.pid
        assert f"another disagg-node (pid {pid}) runs in {planes.run_dir}; " in second.stderr

        planes.daemon.process.terminate()
        assert planes.daemon.process.wait(20) == 0
        planes.daemon._log.close()
        assert all(procfs.is_alive(pid) for pid in pids.values())
        left = [{"worker": name, "pid": pid} for name, pid in pids.items()]
        assert planes.stop() == (1, outcome(planes.run_dir, left=left))

        kept = node_file["workers"][1:]
        planes.next_daemon(workers=[{**kept[0], "args": ["--costs", "{}"]}]).wait_ready()
        said = planes.daemon.log()
        assert (
            f"prefill-0 is not in the node file and goes on without us (pid {pids['prefill-0']})"
            in said
        )
        assert "decode-0: runs with another command than the node file's" in said
        assert planes.pids() == pids

        pid = planes.daemon.process.pid
        ended = {"pid": pid, "ended": True}
        assert planes.stop() == (1, outcome(planes.run_dir, daemon=ended, left=left[:1]))
        assert planes.daemon.process.wait(20) == 0
        gone = [{"worker": "prefill-0", "pid": pids["prefill-0"], "ended": True}]
        assert planes.stop("--workers") == (0, outcome(planes.run_dir, workers=gone))


def test_an_adopted_worker_that_crashes_starts_again_on_the_gpu_it_had(folder: Path) -> None:
    """The worker before it left the file: counted in the file's order, it would be another's."""
    node_file = standin_node(folder, on_sigterm="leave", devices="sim", sim_devices=3)
    first = node_file["workers"][0]
    node_file["workers"] = [
        {**first, "name": name, "role": "mixed", "port": free_port(), "gpus": 1} for name in "abc"
    ]
    with node(node_file, folder) as planes:
        planes.daemon.wait_ready()
        pids = planes.pids()
        planes.end_daemon(signal.SIGTERM)
        planes.next_daemon(workers=node_file["workers"][1:]).wait_ready()
        assert "runs with another command" not in planes.daemon.log()

        os.kill(pids["c"], signal.SIGKILL)

        wait_until("c to run again", lambda: planes.pids()["c"] not in (None, pids["c"]))
        planes.daemon.wait_ready()
        [had] = planes.daemon.page().samples["disagg_gpu_assignment_info"][-1:]
        assert (had[0]["engine"], had[0]["gpu"]) == ("c", "GPU-sim-0002")
        planes.stop("--workers")


def test_stop_ends_a_running_daemon_with_all_its_workers(folder: Path) -> None:
    with node(standin_node(folder), folder) as planes:
        planes.daemon.wait_ready()
        pids = planes.pids()
        ended = {"pid": planes.daemon.process.pid, "ended": True}

        assert planes.stop() == (0, outcome(planes.run_dir, daemon=ended))
        assert planes.daemon.process.wait(20) == 0
        assert not any(procfs.is_alive(pid) for pid in pids.values())


def steps_back(pages: list[Page], names: str = "") -> list[str]:
    """The counters of some names that were ever less than before, or gone."""
    found = []
    for old, new in itertools.pairwise(pages):
        for name in old.samples:
            if not name.endswith("_total") or not re.match(names, name):
                continue
            values = {tuple(sorted(have.items())): value for have, value in new.samples[name]}
            for have, value in old.samples[name]:
                now = values.get(tuple(sorted(have.items())))
                if now is None or now < value:
                    found.append(f"{name}{have}: {value} then {now}")
    return found


def test_under_init_a_killed_daemon_restarts_and_a_signal_ends_everything_in_order(
    folder: Path,
) -> None:
    """As in a container: `disagg-node container-init -- disagg-node start`."""
    file = standin_node(folder)
    with node(file, folder, under_init=True) as planes:
        planes.daemon.wait_ready()
        pids, first = planes.pids(), holder(planes.run_dir / "lock")
        assert first is not None
        assert first != planes.daemon.process.pid
        os.kill(first, signal.SIGKILL)

        def back() -> bool:
            return holder(planes.run_dir / "lock") not in (None, first)

        wait_until("another daemon", back)
        planes.daemon.wait_ready()
        assert planes.pids() == pids
        assert (
            "init: the daemon ended by signal 9; the next start is in 1.0 s" in planes.daemon.log()
        )

        planes.daemon.process.send_signal(signal.SIGTERM)
        assert planes.daemon.process.wait(20) == 0
        assert "prefill-0: draining → stopped" in planes.daemon.log()
        assert all(procfs.start_ticks(pid) is None for pid in pids.values()), "not buried"


@pytest.fixture
def tiny(folder: Path) -> Iterator[TinyDaemons]:
    daemons = TinyDaemons(folder)
    yield daemons
    daemons.close()


def test_the_tiny_daemons_fixture_leaves_no_daemon_and_no_worker(folder: Path) -> None:
    daemons = TinyDaemons(folder)
    daemon = daemons.start()
    try:
        wait_until("its workers", lambda: all(daemons.alive().values()))
        daemons.close()

        assert wait_readable(daemon, 0)
        assert daemons.alive() == {name: [] for name in NAMES}
    finally:
        os.close(daemon)


def test_a_daemon_killed_at_fifty_moments_orphans_and_duplicates_no_worker(
    tiny: TinyDaemons,
) -> None:
    """While it starts, adopts, serves, restarts or drains, and at writes of its journal."""
    numbers = random.Random(20261121)
    adopted = 0
    longest = max(0.6, 1.5 * seconds_to_start(tiny))
    for round_number in range(50):
        exactly = round_number % 2 == 0
        writes = numbers.randint(1, 12) if exactly else None
        before = {name: set(pids) for name, pids in tiny.alive().items()}
        daemon = tiny.start(dies_at_write=writes, before=numbers.random() < 0.5)
        try:
            what = numbers.choice(["start", "drain", "restart"])
            ended = wait_readable(daemon, numbers.uniform(0, longest))
            if not ended and what == "restart":
                kill_one(tiny, numbers)
                ended = wait_readable(daemon, numbers.uniform(0, 0.1))
            elif not ended and what == "drain":
                send(daemon, signal.SIGINT)
                ended = wait_readable(daemon, numbers.uniform(0, 0.2))
            if not ended:
                send(daemon, signal.SIGKILL)
            assert wait_readable(daemon)
        finally:
            os.close(daemon)
        alive = tiny.alive()
        assert all(len(pids) <= 1 for pids in alive.values()), f"round {round_number}: {alive}"
        adopted += sum(bool(before[name] & set(alive[name])) for name in NAMES)

    ended_workers = end_workers(RunFolder(tiny.run_dir), lambda _text: None)
    assert all(each.ended for each in ended_workers)
    assert tiny.alive() == {name: [] for name in NAMES}
    # The random moments covered the intended states.
    assert adopted >= 10
    assert tiny.started() >= 20


def seconds_to_start(tiny: TinyDaemons) -> float:
    """Return how long this machine takes until a daemon has started its workers."""
    begun = time.monotonic()
    daemon = tiny.start()
    try:
        wait_until("its workers", lambda: all(tiny.alive().values()))
        send(daemon, signal.SIGKILL)
        assert wait_readable(daemon)
    finally:
        os.close(daemon)
    return time.monotonic() - begun


def send(daemon: int, sign: signal.Signals) -> None:
    # One that dies at a write of its journal may have done so by now.
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(daemon, sign)


def kill_one(tiny: TinyDaemons, numbers: random.Random) -> None:
    alive = [pid for pids in tiny.alive().values() for pid in pids]
    if alive:
        # One that was ending anyway may be gone by now.
        with contextlib.suppress(ProcessLookupError):
            os.kill(numbers.choice(alive), signal.SIGKILL)
