"""The cost of all rules together at 128 nodes of 8 GPUs, alerts included: `make bench-rollup`.

A real Prometheus holds the last minutes of 128 nodes, each with the whole page of our demo, and
evaluates every rule three times as often as usual. Its CPU, less its CPU without rules, is the cost
of a round of rules. With `--before DIR` (such as the rules of an older release) both are measured
on the same history.
"""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterable
from pathlib import Path

import yaml
from bench.rollup.server import promtool, running

NODES = 128
SCRAPES, SCRAPE_SECONDS = 14, 30
ROUND_SECONDS, SPEED = 15, 3
WATCHED_SECONDS = 30
_WARM_SECONDS, _LEAD_SECONDS = 40.0, 150
COUNTERS = ("_total", "_bucket", "_count", "_sum")


def demo_page() -> str:
    """Return the page of a simulated node of eight GPUs that has worked for a while."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        listen = f"127.0.0.1:{held.getsockname()[1]}"
    argv = [sys.executable, "-m", "disagg_cluster.cli", "demo", "--no-prometheus"]
    quiet = subprocess.DEVNULL
    with subprocess.Popen([*argv, "--listen", listen], stdout=quiet, stderr=quiet) as demo:
        try:
            # Until the page has all rows of a node that has worked for a while.
            time.sleep(_WARM_SECONDS)
            with urllib.request.urlopen(f"http://{listen}/metrics", timeout=30) as reply:
                return str(reply.read(), "utf-8")
        finally:
            demo.terminate()


def cost_ms(page: str, rules: dict[str, Path]) -> dict[str, float]:
    """Return the CPU milliseconds of a round of each folder of rules, on one history."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        files = [path for each in rules.values() for path in each.glob("*.yaml")]
        read = set(re.findall(r"\b(?:disagg|process)_[a-z0-9_]+", _text(files)))
        # Rules cannot record anything older than the history, so it ends as they start.
        end = int(time.time()) + _LEAD_SECONDS
        history = root / "history.om"
        with history.open("w") as out:
            out.writelines(_history(page, read, end))
        data = root / "data"
        promtool("tsdb", "create-blocks-from", "openmetrics", "--quiet", str(history), str(data))
        history.unlink()
        if (left := end - time.time()) < 0:
            raise SystemExit(f"the history took {-left:.0f} s too long to write: a longer lead")
        # The history ends now, so that later scrapes follow it without a gap.
        time.sleep(left)
        nothing = root / "none"
        nothing.mkdir()
        spent = {name: _spent(data, each, root) for name, each in {"": nothing, **rules}.items()}
    return {name: (spent[name] - spent[""]) * 1e3 for name in rules}


def _spent(data: Path, rules: Path, root: Path) -> float:
    """Return the CPU seconds of Prometheus for a round at the usual pace."""
    for written in ("wal", "chunks_head"):
        shutil.rmtree(data / written, ignore_errors=True)
    hastened = root / "rules"
    shutil.rmtree(hastened, ignore_errors=True)
    hastened.mkdir()
    for path in rules.glob("*.yaml"):
        groups = yaml.safe_load(path.read_text())["groups"]
        for group in groups:
            minutes = int(group.get("interval", "0m").removesuffix("m"))
            group["interval"] = f"{(60 * minutes or ROUND_SECONDS) // SPEED}s"
        (hastened / path.name).write_text(yaml.safe_dump({"groups": groups}))
    config = yaml.safe_dump({"rule_files": [f"{hastened}/*.yaml"]})
    with running(data, config=config) as server:
        # The first rounds fill caches and are not counted.
        time.sleep(2 * ROUND_SECONDS / SPEED)
        before, began = server.cpu_seconds(), time.monotonic()
        time.sleep(WATCHED_SECONDS)
        spent, took = server.cpu_seconds() - before, time.monotonic() - began
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics") as reply:
            missed = re.findall(
                r"iterations_missed_total\{.*\} ([1-9].*)", str(reply.read(), "utf-8")
            )
    if missed:
        raise SystemExit("the machine is too busy: rounds of rules were left out")
    return spent / took * ROUND_SECONDS / SPEED


def _history(page: str, read: set[str], end: int) -> Iterable[str]:
    """Yield the nodes' history, a line a sample; counters grow by a hundredth a scrape."""
    for line in page.splitlines():
        found = re.match(r"([a-z_0-9]+)(?:\{(.*)\})? (\S+)$", line)
        if found is None or found[1] not in read:
            continue
        name, labels, value = found[1], found[2] or "", float(found[3])
        grows = abs(value) / 100 if name.endswith(COUNTERS) else 0.0
        for node in range(NODES):
            own = labels.replace("GPU-", f"GPU-{node}-")
            where = f'cluster="c",node="n{node}",job="disagg-node"{"," if own else ""}'
            for scrape in range(SCRAPES):
                at = end - SCRAPE_SECONDS * (SCRAPES - 1 - scrape)
                yield f"{name}{{{where}{own}}} {value + grows * scrape} {at}\n"
    for node in range(NODES):
        for scrape in range(SCRAPES):
            at = end - SCRAPE_SECONDS * (SCRAPES - 1 - scrape)
            yield f'up{{cluster="c",node="n{node}",job="disagg-node"}} 1 {at}\n'
    yield "# EOF\n"


def _text(files: list[Path]) -> str:
    return "".join(path.read_text() for path in files)
