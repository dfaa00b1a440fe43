"""Whole screens of the terminal view, kept as text: `python -m support.top_screens` writes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

from disagg_cluster.top.screen.controls import Controls, EngineOrder, ScreenPage
from disagg_cluster.top.screen.lines import ASCII, UNICODE, Glyphs, plain
from disagg_cluster.top.screen.other_pages import LogTail
from disagg_cluster.top.screen.screen import screen
from disagg_cluster.top.view.building import empty_view
from disagg_cluster.top.view.values import TerminalView
from support import top_looks as looks

DATA = Path(__file__).parents[1] / "data"
FOLDER = DATA / "top"
SIZES = ((80, 24), (200, 50))
_LOG = LogTail(
    "/run/disagg-node/logs/prefill-0.log", tuple(f"INFO line {number}" for number in range(60))
)


@cache
def golden_node() -> TerminalView:
    """Return the node of the golden page; one scrape shows its GPUs' time since their start."""
    page = (DATA / "golden_page.prom").read_bytes()
    return looks.viewed([(looks.series_of(page), 1_750_001_000.0)])


@cache
def serving_node() -> TerminalView:
    series = [looks.serving(8, 6, looks.AT - ago) for ago in range(600, -1, -5)]
    return looks.viewed((each, looks.AT - 5 * (120 - n)) for n, each in enumerate(series))


@cache
def starting_node() -> TerminalView:
    rows = looks.a_node()
    for index in range(2):
        looks.add_gpu(rows, index, (0, 0, 0, 0, 0), watermark=looks.AT - 30, start=looks.AT - 30)
        looks.add_worker(rows, f"prefill-{index}", "starting", age_seconds=30)
    return looks.viewed([(rows, looks.AT)])


@cache
def failed_node() -> TerminalView:
    before, after = looks.serving(2, 2, looks.AT - 5), looks.serving(2, 2, looks.AT, launched=False)
    after["disagg_engine_up"][1] = after["disagg_engine_up"][1]._replace(value=0.0)
    looks.add_worker(after, "prefill-0", "failed", restarts=5, age_seconds=None)
    looks.add_worker(after, "decode-0", "backoff", restarts=1, next_start_seconds=12)
    looks.add(after, "disagg_collector_success", 0, collector="engine:decode-0")
    looks.add(after, "disagg_collector_success", 0, collector="nvml")
    return looks.viewed([(before, looks.AT - 5), (after, looks.AT)])


@cache
def empty_node() -> TerminalView:
    return looks.viewed([(looks.a_node(), looks.AT)])


@cache
def gpus_without_engines() -> TerminalView:
    rows = looks.a_node()
    looks.add_gpu(rows, 0, (0, 0, 3000, 0, 600))
    return looks.viewed([(rows, looks.AT)])


@cache
def unknown_values() -> TerminalView:
    """Return an engine that was found and reports nothing yet: values are absent, not 0."""
    rows = looks.a_node()
    looks.add(rows, "disagg_gpu_info", 1, gpu="GPU-0000", index="0", gpu_name="NVIDIA L4")
    looks.add_engine(rows, "10.0.0.7:8000", "unknown", up=None, model="")
    return looks.viewed([(rows, looks.AT)])


@cache
def one_gpu() -> TerminalView:
    ages = (60, 5, 0)
    series = ((looks.serving(1, 1, looks.AT - ago), looks.AT - ago) for ago in ages)
    return looks.viewed(series)


@cache
def cpu_engines() -> TerminalView:
    """Return a host without GPUs: each engine has a pseudo-device."""
    return looks.viewed((_on_cpu(looks.AT - ago), looks.AT - ago) for ago in (60, 0))


@cache
def gpus_and_cpu_engines() -> TerminalView:
    """Return a node with two GPUs beside one without any."""
    return looks.viewed(
        (
            looks.together(looks.serving(2, 2, at, node="gpu-node"), _on_cpu(at, node="cpu-node")),
            at,
        )
        for at in (looks.AT - 60, looks.AT)
    )


def _on_cpu(at: float, node: str = "") -> looks.Rows:
    rows = looks.serving(2, 2, at, node=node)
    rows["disagg_gpu_info"] = [
        each._replace(labels={**each.labels, "gpu_name": "CPU", "device": "cpu"})
        for each in rows["disagg_gpu_info"]
    ]
    for name in ("memory_used_bytes", "memory_total_bytes", "power_watts"):
        del rows[f"disagg_gpu_{name}"]
    return rows


@cache
def sixteen_gpus() -> TerminalView:
    return looks.viewed(
        (looks.serving(16, 40, looks.AT - ago), looks.AT - ago) for ago in (60, 30, 0)
    )


@cache
def cluster() -> TerminalView:
    def all_nodes(at: float) -> looks.Rows:
        rows = looks.together(*(looks.serving(8, 4, at, node=f"node-{n}") for n in range(5)))
        whose = {"model_name": "llama", "engine_namespace": "", "gpu_name": "NVIDIA H100"}
        for role, now, needed in (("prefill", 20, 24), ("decode", 20, 12)):
            looks.add(rows, "disagg_plan_gpus", now, kind="current", role=role, **whose)
            ahead = {"horizon": "1h", "quantile": "0.9"}
            looks.add(rows, "disagg_plan_gpus", needed, kind="needed", role=role, **ahead, **whose)
            recommended = {"kind": "recommended", "horizon": "1h"}
            looks.add(rows, "disagg_plan_gpus", needed, role=role, **recommended, **whose)
        cause = {"engine": "prefill-1", "role": "prefill", "cause": "slow_gpu", "node": "node-3"}
        blamed = {"model_name": "llama", "engine_namespace": "", **cause}
        looks.add(rows, "disagg_bottleneck", 0.9, **blamed)
        looks.add(rows, "disagg_bottleneck_ttft_cost_seconds", 0.31, **blamed)
        looks.add(rows, "disagg_bottleneck_action_info", 1, action="replace_gpu", **blamed)
        move = {"worker": "decode-1", "node": "node-2", "role": "decode", "to_role": "prefill"}
        moved = {"model_name": "llama", "engine_namespace": "", **move}
        looks.add(rows, "disagg_rebalance_advised_info", 1, **moved)
        fires = {"alertname": "DisaggImbalance", "alertstate": "firing", "severity": "warning"}
        looks.add(rows, "ALERTS", 1, cluster="blue", model_name="llama", **fires)
        return rows

    series = ((all_nodes(looks.AT - ago), looks.AT - ago) for ago in (60, 0))
    return looks.viewed(series, title="all nodes")


@cache
def no_answer() -> TerminalView:
    return replace(serving_node(), unanswered="http://127.0.0.1:9847/metrics: Connection refused")


def nothing_yet() -> TerminalView:
    return empty_view("127.0.0.1:9847", looks.LINKS, 0.0)


_MAIN = Controls()
_SHOWN: dict[str, tuple[Callable[[], TerminalView], Controls, Glyphs]] = {
    "golden-node": (golden_node, _MAIN, UNICODE),
    "serving": (serving_node, _MAIN, UNICODE),
    "serving-ascii": (serving_node, _MAIN, ASCII),
    "starting": (starting_node, _MAIN, UNICODE),
    "failed": (failed_node, _MAIN, UNICODE),
    "empty": (empty_node, _MAIN, UNICODE),
    "no-engine": (gpus_without_engines, _MAIN, UNICODE),
    "unknown-values": (unknown_values, _MAIN, UNICODE),
    "cpu-engines": (cpu_engines, _MAIN, UNICODE),
    "one-gpu": (one_gpu, _MAIN, UNICODE),
    "sixteen-gpus": (sixteen_gpus, _MAIN, UNICODE),
    "sorted-and-filtered": (
        sixteen_gpus,
        Controls(order=EngineOrder.USED, filter="decode", selected=("", "decode-3")),
        UNICODE,
    ),
    "cluster": (cluster, _MAIN, UNICODE),
    "cluster-gpus": (cluster, Controls(by_node=True, first_gpu=6), UNICODE),
    "no-answer": (no_answer, _MAIN, UNICODE),
    "nothing-yet": (nothing_yet, _MAIN, UNICODE),
    "help": (serving_node, Controls(page=ScreenPage.HELP), UNICODE),
    "workers": (failed_node, Controls(page=ScreenPage.WORKERS), UNICODE),
    "engine": (
        serving_node,
        Controls(page=ScreenPage.ENGINE, selected=("", "prefill-0")),
        UNICODE,
    ),
    "log": (serving_node, Controls(page=ScreenPage.LOG, selected=("", "prefill-0")), UNICODE),
}
NAMES = tuple(f"{name}-{width}x{height}" for name in _SHOWN for width, height in SIZES)


def drawn(name: str) -> str:
    """Return a screen by its name, which ends in its size."""
    kind, _, size = name.rpartition("-")
    width, height = map(int, size.split("x"))
    view, controls, glyphs = _SHOWN[kind]
    lines = screen(view(), controls, width, height, glyphs, _LOG)
    return "\n".join(map(plain, lines)) + "\n"


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for each in NAMES:
        (FOLDER / f"{each}.txt").write_text(drawn(each), encoding="utf-8")
