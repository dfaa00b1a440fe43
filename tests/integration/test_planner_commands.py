"""The commands that look ahead, on a real Prometheus whose past was written by hand."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml

from support.backfill import At, Past, openmetrics, prometheus_with
from support.pictures import texts_of
from support.prometheus_query import query

pytestmark = pytest.mark.prometheus

MINUTE, HOUR = 60, 3600
SINCE = 8 * HOUR


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Two models in eight hours: one steady, one gone for the last two."""
    now = int(time.time())
    start = now - SINCE

    def tokens(model: str, phase: str, per_second: float, until: int) -> Past:
        labels = {"cluster": "east", "node": "n1", "role": phase, "phase": phase}
        whose = {"model_name": model, "engine_namespace": "search"}
        return Past(
            "disagg_node_phase_tokens_total",
            labels | whose,
            lambda t: per_second * (t - start) if t <= until else None,
        )

    past = [
        tokens(model, phase, per_second, until)
        for model, until in (("llama", now), ("gone", now - 2 * HOUR))
        for phase, per_second in (("prefill", 1200.0), ("decode", 300.0))
    ]
    text = openmetrics(past, range(start, now + 1, 15))
    with prometheus_with(text, tmp_path_factory.mktemp("commands")) as running:
        yield running


def run(*args: str) -> subprocess.CompletedProcess[str]:
    command = (sys.executable, "-m", "disagg_cluster.cli", *args)
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def test_models_are_forecast_and_one_that_is_gone_is_undecided(url: str, tmp_path: Path) -> None:
    picture = tmp_path / "load.svg"

    done = run("forecast", "--prometheus", url, "--since", "8h", "--json", "--plot", str(picture))

    assert (done.returncode, done.stderr) == (0, f"{picture}\n")
    whole = json.loads(done.stdout)
    gone, llama = whole["models"]
    assert (llama["cluster"], llama["model_name"]) == ("east", "llama")
    (near, *_, day) = llama["phases"]["prefill"]["horizons"]
    assert near["tokens_per_second"]["0.5"] == pytest.approx(1200, rel=0.01)
    ahead = datetime.fromisoformat(near["time"]) - datetime.fromisoformat(whole["made_at"])
    assert 120 <= ahead.total_seconds() <= 300
    assert "2 times the horizon" in day["undecided"]
    told = [each.get("undecided", "") for each in gone["phases"]["decode"]["horizons"]]
    assert "nothing is known of the last" in told[0]
    assert all(told)
    texts = texts_of(picture)
    shown = "model {}, namespace search, cluster east"
    for model in ("gone", "llama"):
        for phase in ("prefill", "decode"):
            assert f"{phase}: {shown.format(model)}" in texts
    assert texts.count("median") == 2
    assert sum(text.startswith("undecided: ") for text in texts) == 2


def test_a_backtest_selects_a_model_by_name_and_an_unknown_one_is_an_error(url: str) -> None:
    common = ("backtest", "--prometheus", url, "--since", "8h", "--horizons", "5m")

    done = run(*common, "--model", "llama", "--moments", "4")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("model llama, namespace search, cluster east\n")

    wrong = run(*common, "--model", "lama")
    assert wrong.returncode == 1
    assert "knows no model 'lama' in the last 8h; it knows 'gone', 'llama'" in wrong.stderr


def test_an_unknown_cluster_is_an_error_that_names_the_known_ones(url: str) -> None:
    done = run("forecast", "--prometheus", url, "--since", "8h", "--cluster", "west")

    assert done.returncode == 1
    assert "the last 8h: there is no cluster 'west', only 'east'" in done.stderr


def test_the_autoscaler_query_sums_the_recommended_gpus(tmp_path: Path) -> None:
    """The query gives one value: each kind of GPU once, and no other model or namespace."""
    examples = Path(__file__).parents[2] / "examples" / "planner"
    scaled = yaml.safe_load((examples / "keda.yaml").read_text(encoding="utf-8"))
    asked = scaled["spec"]["triggers"][0]["metadata"]["query"]
    now = int(time.time())
    common = {"cluster": "east", "model_name": "llama", "role": "decode", "horizon": "15m"}
    common["engine_namespace"] = "serving"

    def gpus(value: float, **labels: str) -> Past:
        return Past("disagg_plan_gpus", common | labels, lambda _at: value)

    past = [
        gpus(12.0, gpu_name="NVIDIA H200", kind="recommended"),
        gpus(12.0, gpu_name="NVIDIA H200", kind="recommended", pod="planner-old"),
        gpus(4.0, gpu_name="NVIDIA B200", kind="recommended"),
        gpus(99.0, gpu_name="NVIDIA H200", kind="needed", quantile="0.9"),
        gpus(50.0, gpu_name="NVIDIA H200", kind="recommended", model_name="other"),
        gpus(70.0, gpu_name="NVIDIA H200", kind="recommended", engine_namespace="trial"),
    ]
    with prometheus_with(openmetrics(past, range(now - 120, now + 1, 15)), tmp_path) as running:
        ((_, answer),) = query(running, asked)

    assert answer == 16.0


@pytest.mark.parametrize("command", ["plan", "rebalance", "separation"])
def test_a_model_of_the_planner_file_without_load_is_named(
    url: str, tmp_path: Path, command: str
) -> None:
    file = tmp_path / "planner.yaml"
    file.write_text("models: [{model_name: gone}, {model_name: lama}, {transfer_seconds: 1}]\n")

    done = run(command, "-c", str(file), "--prometheus", url, "--since", "8h")
    named = run(command, "-c", str(file), "--prometheus", url, "--since", "8h", "--model", "llama")

    assert (done.returncode, named.returncode, named.stderr) == (0, 0, "")
    assert done.stderr == (
        "the planner file describes 'lama', a model without `model_name:`, of which there is no "
        "load: that is not used; there is load of 'gone' in namespace 'search', 'llama' in "
        "namespace 'search'\n"
    )


@pytest.mark.parametrize(
    ("option", "said"),
    [
        (("--model", "lama"), "knows no model 'lama' in the time of --after; it knows "),
        (("--cluster", "west"), "the time of --after: there is no cluster 'west', only 'east'"),
    ],
)
def test_two_spans_without_anything_to_compare_are_an_error_that_names_what_is_known(
    url: str, option: tuple[str, str], said: str
) -> None:
    now = datetime.now(UTC)
    before, after = (f"{now - timedelta(hours=h):%Y-%m-%dT%H:%M}/1h" for h in (4, 2))

    done = run("compare", "--before", before, "--after", after, "--prometheus", url, *option)

    assert (done.returncode, done.stdout) == (1, "")
    assert said in done.stderr


@pytest.mark.parametrize("scrape_seconds", [15, 60])
def test_two_spans_are_compared_at_equal_load(tmp_path: Path, scrape_seconds: int) -> None:
    """In the second span the same tokens take half of the GPUs."""
    now = int(time.time()) // 60 * 60
    start, changed = now - 4 * HOUR, now - 2 * HOUR
    whose = {"cluster": "east", "node": "n1", "model_name": "llama", "engine_namespace": ""}

    def growing(first: float, second: float) -> At:
        return lambda t: first * (min(t, changed) - start) + second * max(0, t - changed)

    past = [
        Past("disagg_node_phase_tokens_total", whose | {"phase": "prefill"}, growing(500, 500)),
        Past("disagg_node_phase_tokens_total", whose | {"phase": "decode"}, growing(100, 100)),
        Past("disagg_node_phase_seconds_total", whose | {"phase": "idle"}, growing(8, 4)),
        Past(
            "cluster_model_namespace:disagg_request_arrivals:rate1m",
            {name: whose[name] for name in ("cluster", "model_name", "engine_namespace")},
            lambda _at: 1.0,
        ),
    ]
    # Scrapes and query steps are not aligned.
    text = openmetrics(past, range(start + 7, now + 1, scrape_seconds))

    def at(seconds: int) -> str:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M/110m")

    common = ("--before", at(start + 300), "--after", at(changed + 300), "--cluster", "east")
    with prometheus_with(text, tmp_path) as running:
        told = run("compare", *common, "--prometheus", running, "--model", "llama", "--json")
        shown = run("compare", *common, "--prometheus", running)

    assert (told.returncode, told.stderr) == (0, "")
    measures = {each["name"]: each for each in json.loads(told.stdout)["measures"]}
    assert measures["tokens_per_gpu_second"]["before"] == pytest.approx(75, rel=0.01)
    assert measures["tokens_per_gpu_second"]["change_ratio"] == pytest.approx(1.0, abs=0.02)
    assert measures["tokens_per_gpu_second"]["verdict"] == "better"
    assert "undecided" in measures["joules_per_million_tokens"]
    assert "tokens/s/GPU" in shown.stdout


def test_a_node_that_ceases_to_report_energy_saves_none(tmp_path: Path) -> None:
    """Three equal nodes of 4 GPUs at 400 W; in the second span one reports no energy."""
    now = int(time.time()) // 60 * 60
    start, changed = now - 4 * HOUR, now - 2 * HOUR

    def grows(name: str, node: str, per_second: float, until: int = now, **labels: str) -> Past:
        whose = {"cluster": "east", "node": node, "model_name": "llama", "engine_namespace": ""}
        return Past(
            name,
            whose | labels,
            lambda t: per_second * (t - start) if t <= until else None,
        )

    past = [
        Past(
            "cluster_model_namespace:disagg_request_arrivals:rate1m",
            {"cluster": "east", "model_name": "llama", "engine_namespace": ""},
            lambda _at: 1.0,
        )
    ]
    for node, until in (("old", now), ("metered", now), ("slices", changed)):
        past += [
            grows("disagg_node_phase_tokens_total", node, 500, phase="prefill"),
            grows("disagg_node_phase_tokens_total", node, 100, phase="decode"),
            grows("disagg_node_phase_seconds_total", node, 4, phase="decode", gpu_name="H"),
            grows("disagg_node_energy_joules_total", node, 1600, until, gpu_name="H"),
        ]
        # One is older than this counter.
        if node != "old":
            past.append(grows("disagg_node_energy_gpu_seconds_total", node, 4, until, gpu_name="H"))
    text = openmetrics(past, range(start + 7, now + 1, 15))

    def at(seconds: int) -> str:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M/100m")

    with prometheus_with(text, tmp_path) as running:
        told = run(
            *("compare", "--before", at(start + 300), "--after", at(changed + 540)),
            *("--prometheus", running, "--json"),
        )

    measures = {each["name"]: each for each in json.loads(told.stdout)["measures"]}
    joules = measures["joules_per_million_tokens"]
    assert joules["before"] == pytest.approx(1600e6 / 600, rel=0.01)
    assert joules["after"] == pytest.approx(1600e6 / 600, rel=0.01)
    assert joules["verdict"] == "no sure difference"


@pytest.mark.parametrize("asked", ["2026-11-01", "2026-11-01T10:00", "2026-13-01T10:00/2h", "x/2h"])
def test_an_invalid_span_is_bad_usage(asked: str) -> None:
    done = run("compare", "--before", asked, "--after", "2026-11-01T10:00/2h")

    assert done.returncode == 2
    assert "is no " in done.stderr


def test_mixed_engines_of_a_cluster_get_a_verdict_on_separation(tmp_path: Path) -> None:
    """The verdict uses learned step costs and shows the loss to interference."""
    now = int(time.time()) // 60 * 60
    start = now - 2 * HOUR
    node = {"cluster": "east", "node": "n1"}
    whose = {"model_name": "llama", "engine_namespace": "search"}

    def steady(name: str, value: float, **labels: str) -> Past:
        return Past(name, node | labels, lambda _at: value)

    def growing(name: str, per_second: float, **labels: str) -> Past:
        return Past(name, node | labels, lambda t: per_second * (t - start))

    past = [
        growing("disagg_node_phase_tokens_total", 4000, phase="prefill", **whose),
        growing("disagg_node_phase_tokens_total", 800, phase="decode", **whose),
        Past(
            "cluster_model_namespace:disagg_request_arrivals:rate1m",
            {"cluster": "east", **whose},
            lambda _at: 4.0,
        ),
    ]
    interference = "disagg_engine_interference"
    for number in range(4):
        engine, gpu = f"e{number}", f"g{number}"
        past += [
            steady("disagg_engine_info", 1, engine=engine, role="mixed", model_name="llama"),
            steady("disagg_gpu_info", 1, gpu=gpu, gpu_name="NVIDIA H200"),
            steady(
                "disagg_gpu_assignment_info", 1,
                gpu=gpu, engine=engine, engine_namespace="search",
            ),
            growing(f"{interference}_seconds_total", 0.12, engine=engine, effect="loss"),
            growing(f"{interference}_seconds_total", 0.02, engine=engine, effect="gain"),
            growing(f"{interference}_step_seconds_total", 0.5, engine=engine),
        ]  # fmt: skip
        past += [
            steady(
                "disagg_engine_prefill_curve_tokens_per_second", rate,
                engine=engine, step_tokens=tokens,
            )
            for tokens, rate in (("256", 12_000.0), ("2048", 20_000.0), ("8192", 21_000.0))
        ]  # fmt: skip
        past += [
            steady("disagg_engine_decode_curve_seconds", seconds, engine=engine, batch=batch)
            for batch, seconds in (("1", 0.012), ("64", 0.02), ("256", 0.04))
        ]
    file = tmp_path / "planner.yaml"
    file.write_text(
        "targets: {ttft_seconds: 3, itl_seconds: 0.1}\n"
        "kv_link_bytes_per_second: 50000000000\n"
        "models: [{model_name: llama, kv_bytes_per_token: 131072}]\n"
    )
    text = openmetrics(past, range(start, now + 1, 15))
    with prometheus_with(text, tmp_path) as running:
        common = ("-c", str(file), "--prometheus", running, "--since", "2h", "--json")
        done = run("separation", *common)
        planned = run("plan", *common)

    assert (done.returncode, done.stderr) == (0, "")
    (model,) = json.loads(done.stdout)["models"]
    assert model["load"]["prompt_tokens"] == pytest.approx(1000, rel=0.02)
    (answer,) = model["answers"]
    assert (answer["today"], answer["gpu_name"], answer["gpus"]) == ("mixed", "NVIDIA H200", 4)
    assert answer["mixed"]["engines"] == 4
    assert answer["separate"]["kv_transfer_seconds"] == pytest.approx(
        model["load"]["prompt_tokens"] * 131_072 / 5e10
    )
    assert answer["interference_gain_ratio"] == pytest.approx(0.5 / 0.4, rel=0.01)

    assert (planned.returncode, planned.stderr) == (0, "")
    (beside,) = json.loads(planned.stdout)["models"]
    assert [each["verdict"] for each in beside["separation"]] == [answer["verdict"]]
    wasted = beside["in_hindsight"]
    assert wasted["engines_from"] == "running"
    assert wasted["known_seconds"] == pytest.approx(2 * HOUR, rel=0.1)
    assert wasted["present"]["engines"] == {"mixed": {"least": 4, "most": 4}}
    assert 0 < wasted["present"]["idle_gpu_hours"] < wasted["present"]["gpu_hours"]
