"""What commands that look ahead, compare, tune and install say when they succeed, whole."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import date
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from rich.style import Style

from disagg_cluster.cli import init
from disagg_cluster.cli.installing import install
from disagg_cluster.cli.tuning import tune
from disagg_cluster.cli.tuning.target import TargetOptions
from disagg_cluster.deploy.first_node_file import MachineFindings
from disagg_cluster.inspect.report.history import Reader
from disagg_cluster.planner.compare import comparison
from disagg_cluster.planner.compare.comparison import Comparison, MeasuredChange, UnknownMeasure
from disagg_cluster.planner.compare.matching import UndecidedComparison
from disagg_cluster.planner.compare.minutes import SpanMinutes
from disagg_cluster.planner.compare.prometheus_minutes import PrometheusMinutes
from disagg_cluster.planner.diagnose.reading.rolling_diagnosis import RollingDiagnosis
from disagg_cluster.top.terminal import once
from disagg_cluster.top.terminal.painter import rich_style
from disagg_cluster.tune import prefill_prober, traffic_guard
from disagg_cluster.tune.completions import UniquePrompts
from disagg_cluster.tune.prefill_prober import PrefillProber
from support.diagnosed import CLEAN, FOUND, UNDECIDED
from support.histories import four_hours
from support.probed_engines import FakeEngine, affine
from support.top_screens import cluster, empty_node, failed_node
from support.transcripts import Transcript

START = 1_700_000_000 // 300 * 300
WORKER = "gpu_name: NVIDIA H200, priced_as: meta-llama/Llama-3.3-70B-Instruct"
PAIR = f"""\
targets: {{ttft_seconds: 2, itl_seconds: 0.05}}
gpus: [{{gpu_name: NVIDIA H200, most_gpus: 64, price_per_hour: 3}}]
models:
  - workers:
      - {{role: prefill, {WORKER}, gpus: 4, engines: 1}}
      - {{role: decode, {WORKER}, gpus: 4, engines: ENGINES}}
"""
MIXED = f"""\
targets: {{ttft_seconds: 2, itl_seconds: 0.05}}
kv_link_bytes_per_second: 50000000000
models:
  - workers:
      - {{role: mixed, {WORKER}, gpus: 4, engines: 2}}
"""


def load(path: Path, steps: int, rate: float) -> Path:
    """A load that goes up and down within each hour; of five-minute steps."""
    rows = ["t_s,requests_per_s,prompt_tokens_per_s,output_tokens_per_s"]
    for step in range(steps):
        now = rate * (1 + step % 12 / 24)
        rows.append(f"{START + 300 * step},{now:.3f},{now * 600:.1f},{now * 100:.1f}")
    path.write_text("\n".join(rows))
    return path


def test_the_output_of_planning_commands_is_as_recorded(tmp_path: Path) -> None:
    transcript = Transcript({str(tmp_path): "DIR"})
    run = partial(transcript.run, again=False)
    heavy = load(tmp_path / "heavy.csv", 144, 60.0)
    pair, pools, mixed = (tmp_path / f"{name}.yaml" for name in ("pair", "pools", "mixed"))
    pair.write_text(PAIR.replace("ENGINES", "1"))
    pools.write_text(PAIR.replace("ENGINES", "6"))
    mixed.write_text(MIXED)
    run("forecast", "--csv", heavy)
    run("backtest", "--csv", heavy, "--moments", 4, "--horizons", "5m,1h,24h")
    run("plan", "-c", pair, "--csv", heavy)
    run("whatif", "-c", pair, "--csv", heavy, "--requests-factor", 0.5)
    run("separation", "-c", mixed, "--csv", heavy)
    run("rebalance", "-c", pair, "--csv", heavy)
    run("rebalance", "-c", pools, "--csv", heavy)
    run("planner", "--check", "-c", pair)
    without = tmp_path / "without.yaml"
    without.write_text("cluster: lab\n")
    for command in ("plan", "whatif", "separation", "rebalance"):
        run(command, "-c", without, "--csv", heavy)
    transcript.check("ahead")


CHANGES = (
    MeasuredChange("tokens_per_gpu_second", "tokens/s/GPU", 812.5, 1020.25, 0.256, 0.1, 0.4, True),
    MeasuredChange("inter_token_latency_mean_seconds", "s", 0.02, 0.021, 0.05, -0.1, 0.2, False),
    UnknownMeasure("time_to_first_token_p95_seconds", "s", "fewer than 30 minutes are alike"),
)


def test_the_output_of_report_compare_and_diagnose_is_as_recorded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = ("--before", "2023-11-14T22:00/2h", "--after", "2023-11-21T22:00/2h")
    transcript = Transcript()
    monkeypatch.setattr(Reader, "read", lambda *_: four_hours())
    known = SpanMinutes(60.0, *[np.ones(1)] * 7)
    monkeypatch.setattr(PrometheusMinutes, "read", lambda *_: known)
    for form in ((), ("--json",)):
        transcript.run("report", "--gpu-hour-price", 2.5, *form, again=False)
    for found in (
        Comparison(CHANGES, (0.9, 1.0), ("10 minutes before: 3 requests/s",)),
        UndecidedComparison("no minute of one span is like one of the other"),
    ):
        monkeypatch.setattr(comparison, "compare", lambda *_, found=found: found)
        transcript.run("compare", *asked)
    for models in ((CLEAN, UNDECIDED), (FOUND,)):
        monkeypatch.setattr(RollingDiagnosis, "diagnose", lambda *_, models=models: models)
        transcript.run("diagnose")
    transcript.check("back")


@pytest.fixture
def fresh_styles() -> Iterator[None]:
    """A style of Rich keeps what it was first rendered as, for whichever terminal."""
    _forget_styles()
    yield
    _forget_styles()


def _forget_styles() -> None:
    rich_style.cache_clear()
    Style.parse.cache_clear()


@pytest.mark.usefixtures("fresh_styles")
def test_the_output_of_top_once_is_as_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    transcript = Transcript()
    for view in (empty_node(), failed_node(), cluster()):
        monkeypatch.setattr(once, "read_once", lambda _source, view=view: view)
        transcript.run("top", "--once", again=len(view.gpus) < 8)
    transcript.check("top")


class Probed(FakeEngine):
    """An engine in virtual time, as `tune` finds it."""

    model = "llama"
    url = "http://127.0.0.1:8000"

    def __enter__(self) -> Probed:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def test_the_output_of_tune_is_as_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traffic_guard, "refuse_live", lambda *_: None)
    monkeypatch.setattr(tune.signal, "signal", lambda *_: None)
    monkeypatch.setattr(tune, "_prompts", lambda: UniquePrompts(random.Random(3)))
    engine = Probed(affine(1e-3, 1e-5))
    monkeypatch.setattr(TargetOptions, "server", lambda _: (engine, 32_768))
    timed = partial(PrefillProber, now=lambda: engine.now)
    monkeypatch.setattr(prefill_prober, "PrefillProber", timed)
    transcript = Transcript()
    for words in (("prefill", "--prompt-tokens"), ("decode", "--itl", "2ms", "--context-tokens")):
        transcript.run("tune", *words, "512,2048", "--engine", engine.url, again=False)
    transcript.check("tune")


def test_the_output_of_install_and_uninstall_is_as_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "site"
    transcript = Transcript({str(tmp_path): "DIR"})
    monkeypatch.setattr(install, "_program", lambda: Path("/usr/bin/disagg-node"))
    here = ("--into", place)
    run = partial(transcript.run, again=False)
    transcript.run("install", *here, "--node", "gpu-7", "--part", "service")
    run("install", *here, "--node", "gpu-7", "--part", "service", "--apply")
    (place / "disagg-node.service").write_text("mine\n")
    run("install", *here, "--node", "gpu-7", "--part", "service")
    run("install", *here, "--node", "gpu-7", "--part", "service", "--upgrade")
    transcript.run("uninstall", *here)
    run("uninstall", *here, "--apply")
    transcript.check("installation")


def test_the_output_of_init_and_completion_is_as_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    transcript = Transcript({date.today().isoformat(): "TODAY"})
    gpus = ("NVIDIA H200",) * 4
    for found in (
        MachineFindings("gpu-7", gpus, (("vllm", "/venv/bin/python"),), ("openai/gpt-oss-20b",)),
        MachineFindings("cpu-1"),
    ):
        monkeypatch.setattr(init, "_found", lambda found=found: found)
        transcript.run("init", "-o", "-")
    monkeypatch.setenv("SHELL", "/bin/ksh")
    transcript.run("completion")
    transcript.run("completion", "fish")
    transcript.check("beginnings")
