from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from disagg_cluster.cli.main import main

GPU, MODEL = "NVIDIA H100 80GB HBM3", "meta-llama/Llama-3.1-8B-Instruct"


def run(*args: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(main, [str(each) for each in args], prog_name="disagg-node")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five hours of ten requests a second that write much and read little."""
    path = tmp_path_factory.mktemp("load") / "load.csv"
    rng = np.random.default_rng(5)
    rows = ["t_s,requests_per_s,prompt_tokens_per_s,output_tokens_per_s"]
    for step in range(60):
        rate = 10 * rng.lognormal(0, 0.02)
        rows.append(f"{300 * step},{rate:.2f},{rate * 2000:.1f},{rate * 1200:.1f}")
    path.write_text("\n".join(rows))
    return path


def planner_file(folder: Path, prefill: int, decode: int, rebalance: str = "") -> Path:
    path = folder / "planner.yaml"
    workers = "\n".join(
        f"      - {{role: {role}, gpu_name: {GPU}, priced_as: {MODEL}, engines: {engines}}}"
        for role, engines in (("prefill", prefill), ("decode", decode))
    )
    path.write_text(
        f"targets: {{ttft_seconds: 5, itl_seconds: 0.03}}\n{rebalance}"
        f"models:\n  - workers:\n{workers}\n"
    )
    return path


def test_a_move_that_pays_is_reported_with_its_gain_and_cost(load: Path, tmp_path: Path) -> None:
    code, out, err = run("rebalance", "-c", planner_file(tmp_path, 6, 2), "--csv", load)

    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "all requests: move a prefill engine from prefill to decode"
    assert "now 6 prefill + 2 decode: over the next 1h" in lines[1]
    assert lines[2:] == [
        "  its engine serves no requests for 660 s (assumed: drain and lead time)",
        "  how full both pools are is not measured: without that act moves nothing",
    ]


def test_json_has_the_move_with_times_in_seconds(load: Path, tmp_path: Path) -> None:
    # The command only advises, so the mode of the service in the file does not apply.
    file = planner_file(tmp_path, 6, 2, "rebalance: {mode: off}\n")
    (told,) = json.loads(run("rebalance", "-c", file, "--csv", load, "--json")[1])

    assert (told["advice"], told["role"], told["to_role"]) == ("move", "prefill", "decode")
    assert (told["node"], told["worker"]) == (None, None)
    assert told["split"] == {"prefill": 6, "decode": 2}
    assert told["horizon_seconds"] == 3600
    assert told["engine_seconds_missed_less"] > 0


def test_engines_stay_where_no_move_pays(load: Path, tmp_path: Path) -> None:
    file = planner_file(tmp_path, 20, 40)

    assert run("rebalance", "-c", file, "--csv", load)[1] == (
        "all requests: stay at 20 prefill + 40 decode: no move pays\n"
    )
    (told,) = json.loads(run("rebalance", "-c", file, "--csv", load, "--json")[1])
    assert (told["advice"], told["reason"]) == ("stay", "no move pays")


def test_without_both_pools_no_move_is_advised(load: Path, tmp_path: Path) -> None:
    file = planner_file(tmp_path, 2, 0)

    assert run("rebalance", "-c", file, "--csv", load)[1] == (
        "no model has both a prefill and a decode pool; where Prometheus knows no engines, "
        "`workers:` of the planner file names them\n"
    )
    assert run("rebalance", "-c", file, "--csv", load, "--json")[1] == "[]\n"
