"""The planner in mode act, a real Prometheus, and a real daemon that moves one of its workers."""

from __future__ import annotations

import contextlib
import math
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families

from disagg_cluster.cli.main import main
from disagg_cluster.host.run_dir.layout import RunFolder
from disagg_exporter.http.client.scrape import fetch
from disagg_exporter.http.client.unreachable import EngineRefused, EngineUnreachable
from support.backfill import Past, openmetrics, prometheus_with
from support.children import free_port
from support.routed_node import WORKERS, worker_views
from support.running_node import DISAGG_NODE, RunningNode, running_node, wait_for
from support.two_planes import standin_node

pytestmark = [pytest.mark.prometheus, pytest.mark.long]

HOUR = 3600
GPU, PRICED_AS = "NVIDIA H100 80GB HBM3", "meta-llama/Llama-3.1-8B-Instruct"
OWNER = {"cluster": "", "model_name": "llama", "engine_namespace": "chat"}


def past(now: int, moved_at: float = math.inf) -> str:
    """Three hours of requests that read little and write much, of two engines of each role.

    One of these has been moved at a time.
    """
    start = now - 3 * HOUR

    def counts(per_second: float) -> Callable[[int], float]:
        return lambda at: per_second * (at - start)

    def stands(value: float) -> Callable[[int], float]:
        return lambda _at: value

    node = {"cluster": "", "node": "test"}
    series = [
        Past(
            "disagg_node_phase_tokens_total",
            OWNER | {"node": "test", "role": phase, "phase": phase},
            counts(per_second),
        )
        for phase, per_second in (("prefill", 20_000.0), ("decode", 12_000.0))
    ]
    arrivals = OWNER | {"node": "test", "source": "engine"}
    series.append(Past("disagg_request_arrivals_total", arrivals, counts(10.0)))
    for number, worker in enumerate(WORKERS):
        role, gpu = worker.partition("-")[0], f"g{number}"
        engine = node | {"engine": worker}
        of = engine | {"role": role}
        series += [
            Past("disagg_engine_info", of | {"model_name": "llama"}, stands(1.0)),
            Past(
                "disagg_gpu_assignment_info",
                engine | {"gpu": gpu, "engine_namespace": "chat"},
                stands(1.0),
            ),
            Past("disagg_gpu_info", node | {"gpu": gpu, "gpu_name": GPU}, stands(1.0)),
            Past("disagg_worker_state", node | {"worker": worker, "state": "ready"}, stands(1.0)),
            Past(
                "disagg_engine_capacity_used_ratio", of, stands(0.3 if role == "prefill" else 1.2)
            ),
            Past("disagg_engine_requests", of | {"state": "running"}, stands(1.0 + number)),
        ]
    moved = node | {"worker": WORKERS[0], "outcome": "done"}
    series.append(Past("disagg_reassign_moves_total", moved, lambda at: float(at >= moved_at)))
    return openmetrics(series, range(start, now + 1, 30))


def planner_file(prometheus: str, run_dir: Path, port: int) -> str:
    workers = [
        {"role": role, "gpu_name": GPU, "priced_as": PRICED_AS} for role in ("prefill", "decode")
    ]
    return yaml.safe_dump(
        {
            "prometheus": {"url": prometheus},
            "history": {"days": 0.125},
            "every_seconds": 10,
            "lock_file": "lock",
            "listen": {"metrics": f"127.0.0.1:{port}"},
            "diagnosis": {"enabled": False},
            "targets": {"ttft_seconds": 5.0, "itl_seconds": 0.03},
            "models": [{"model_name": "llama", "engine_namespace": "chat", "workers": workers}],
            "rebalance": {"mode": "act", "run_dir": str(run_dir), "cool_down_seconds": HOUR},
        }
    )


def samples(port: int) -> dict[tuple[str, ...], float]:
    """The planner's page by name and label values; nothing while nobody answers."""
    with contextlib.suppress(EngineRefused, EngineUnreachable):
        text = fetch(f"http://127.0.0.1:{port}/metrics", 5.0).decode()
        return {
            (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }
    return {}


@dataclass(frozen=True)
class Acting:
    """A node of stand-ins, and a planner that may move them."""

    node: RunningNode
    planner: subprocess.Popen[bytes]
    port: int
    folder: Path

    def page(self, name: tuple[str, ...]) -> dict[tuple[str, ...], float]:
        """The planner's page once it has a sample of that name and those label values."""
        try:
            return wait_for(
                lambda: page if (page := samples(self.port)).get(name) else None, str(name), 60
            )
        except AssertionError:
            log = (self.folder / "planner.log").read_text()
            raise AssertionError(log + self.node.log()) from None

    def roles(self) -> dict[str, str]:
        """The roles that the workers serve in."""
        views = worker_views(RunFolder(self.folder / "run").control)
        return {name: view.role for name, view in views.items()}


@contextlib.contextmanager
def acting(folder: Path, text: str) -> Iterator[Acting]:
    """Run a node and a planner that reads this past."""
    node_file = standin_node(folder, intervals={"pages_seconds": 0.5})
    for worker in tuple(node_file["workers"]):
        other = worker["name"].replace("-0", "-1")
        node_file["workers"].append({**worker, "name": other, "port": free_port()})
    file, port = folder / "planner.yaml", free_port()
    (folder / "prometheus").mkdir()
    with contextlib.ExitStack() as stack:
        node = stack.enter_context(running_node(node_file, folder))
        prometheus = stack.enter_context(prometheus_with(text, folder / "prometheus"))
        node.wait_ready()
        file.write_text(planner_file(prometheus, folder / "run", port))
        log = stack.enter_context((folder / "planner.log").open("wb"))
        command = (*DISAGG_NODE, "planner", "--config", str(file))
        planner = stack.enter_context(subprocess.Popen(command, stdout=log, stderr=log))
        stack.callback(planner.kill)
        yield Acting(node, planner, port, folder)


def test_the_planner_moves_a_real_worker_and_reports_it(folder: Path) -> None:
    done = ("disagg_rebalance_moves_total", "chat", "llama", "done")
    with acting(folder, past(int(time.time()))) as it:
        found = it.page(done)

        # The moved engine is the prefill engine with the fewest requests.
        assert it.roles() == dict.fromkeys(WORKERS, "decode") | {"prefill-1": "prefill"}
        assert found[done] == 1
        assert not [name for name in found if name[0] == done[0] and name != done]
        why = CliRunner().invoke(main, ["explain", "prefill-0", "--run-dir", str(folder / "run")])
        assert "from prefill to decode" in why.stdout
        assert os.waitpid(it.planner.pid, os.WNOHANG) == (0, 0)


def test_a_planner_keeps_the_cool_down_after_a_move_before_its_start(folder: Path) -> None:
    now = int(time.time())
    with acting(folder, past(now, moved_at=now - HOUR / 2)) as it:
        found = it.page(("disagg_rebalance_mode_info", "act"))

        assert not [name for name in found if name[0] == "disagg_rebalance_advised_info"]
        assert it.roles() == {name: name.partition("-")[0] for name in WORKERS}
