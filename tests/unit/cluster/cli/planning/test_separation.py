from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from disagg_cluster.cli.main import main

START = 1_700_000_000 // 300 * 300
WORKER = "gpu_name: NVIDIA H200, priced_as: meta-llama/Llama-3.3-70B-Instruct"
LINK = "kv_link_bytes_per_second: 50000000000\n"
TARGETS = "targets: {ttft_seconds: 2, itl_seconds: 0.05}\n"
MIXED = f"""\
models:
  - workers:
      - {{role: mixed, {WORKER}, gpus: 4, engines: 2}}
      - {{role: mixed, {WORKER}, gpus: 2}}
"""
POOLS = f"""\
models:
  - workers:
      - {{role: prefill, {WORKER}, gpus: 4, engines: 1}}
      - {{role: decode, {WORKER}, gpus: 2, engines: 2}}
"""


def run(*args: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(main, [str(each) for each in args], prog_name="disagg-node")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve hours of 5 to 7.75 requests a second with prompts of 3,000 tokens."""
    path = tmp_path_factory.mktemp("load") / "load.csv"
    rows = ["t_s,requests_per_s,prompt_tokens_per_s,output_tokens_per_s"]
    for step in range(144):
        rate = 5 + step % 12 / 4
        rows.append(f"{START + 300 * step},{rate},{rate * 3000},{rate * 150}")
    path.write_text("\n".join(rows))
    return path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "planner.yaml"
    path.write_text(TARGETS + LINK + MIXED)
    return path


def only_answer(*args: object) -> dict[str, object]:
    code, out, err = run("separation", "--json", *args)
    assert (code, err) == (0, "")
    (model,) = json.loads(out)["models"]
    (answer,) = model["answers"]
    assert isinstance(answer, dict)
    return answer


def test_the_verdict_is_the_first_line_of_a_model_and_its_pools_follow(
    load: Path, file: Path
) -> None:
    code, out, err = run("separation", "-c", file, "--csv", load, "--gpus", 64)

    assert (code, err) == (0, "")
    whose, verdict, requests, targets, *_ = out.splitlines()
    assert whose == "all requests"
    assert verdict.startswith("separate, 64 x NVIDIA H200: separate, they would take ")
    assert "times the load at the same targets (90 %: " in verdict
    assert "6.38 requests/s in the mean, 7.75 at busy times" in requests
    assert "2 s to the first token and 0.05 s between tokens" in targets
    assert "prefill engines of 2 x NVIDIA H200\n" in out
    assert "the KV of a prompt travels 19.7 ms" in out


def test_the_table_is_no_wider_than_a_terminal(load: Path, file: Path) -> None:
    _, out, _ = run("separation", "-c", file, "--csv", load, "--gpus", 64)
    lines = out.splitlines()
    table = lines[next(n for n, line in enumerate(lines) if "REQUESTS/S" in line) :][:6]

    assert [line.split()[0] for line in table if line[0] != " "] == ["mixed", "separate"]
    assert max(map(len, table)) <= 80


def test_json_has_mixed_and_separate_figures_with_units_in_the_names(
    load: Path, file: Path
) -> None:
    answer = only_answer("-c", file, "--csv", load)

    assert set(answer) == {
        *("today", "gpu_name", "gpus", "verdict", "gain", "mixed", "separate"),
        *("interference_gain_ratio", "reasons"),
    }
    assert (answer["today"], answer["gpu_name"], answer["gpus"]) == ("mixed", "NVIDIA H200", 8)
    gain, mixed, separate = (answer[name] for name in ("gain", "mixed", "separate"))
    assert isinstance(gain, dict)
    assert isinstance(mixed, dict)
    assert isinstance(separate, dict)
    assert gain["low"] < gain["ratio"] < gain["high"]
    assert gain["ratio"] == pytest.approx(
        separate["requests_per_second"] / mixed["requests_per_second"]
    )
    assert set(mixed) == {
        *("engines", "gpus_per_engine", "gpu_name", "requests_per_second", "bound", "holds_load"),
    }
    assert set(separate) == {
        *("prefill", "decode", "requests_per_second", "limited_by", "bound", "holds_load"),
        *("kv_transfer_seconds", "granularity_loss_ratio"),
    }
    used = [separate[role]["engines"] * separate[role]["gpus_per_engine"] for role in
            ("prefill", "decode")]  # fmt: skip
    assert sum(used) <= 8
    assert answer["interference_gain_ratio"] is None


def test_separate_pools_get_a_verdict_on_merging(load: Path, file: Path) -> None:
    file.write_text(TARGETS + LINK + POOLS)

    answer = only_answer("-c", file, "--csv", load)

    assert (answer["today"], answer["gpus"]) == ("separate", 8)
    assert answer["verdict"] in ("merge", "stay separate", "undecided")
    separate = answer["separate"]
    assert isinstance(separate, dict)
    assert [separate[role]["engines"] for role in ("prefill", "decode")] == [1, 2]
    assert ", merged, they would take " not in run("separation", "-c", file, "--csv", load)[1]
    assert "separate today: merged, they" in run("separation", "-c", file, "--csv", load)[1]


def test_the_load_factor_changes_the_load_and_not_the_capacity(load: Path, file: Path) -> None:
    def held(factor: float) -> tuple[object, object]:
        mixed = only_answer("-c", file, "--csv", load, "--load", factor)["mixed"]
        assert isinstance(mixed, dict)
        return mixed["requests_per_second"], mixed["holds_load"]

    (few, few_held), (many, many_held) = held(0.5), held(10)

    assert few == many
    assert (few_held, many_held) == (True, False)


def test_an_unknown_link_or_unknown_engines_are_listed_as_missing(load: Path, file: Path) -> None:
    file.write_text(TARGETS + MIXED)
    answer = only_answer("-c", file, "--csv", load)
    assert answer["verdict"] == "undecided"
    assert answer["missing"] == ["the bandwidth of the links that would carry KV"]
    assert "kv_link_bytes_per_second" in run("separation", "-c", file, "--csv", load)[1]

    file.write_text(TARGETS)
    assert only_answer("-c", file, "--csv", load)["missing"] == ["engines that run, or `--gpus`"]
    offered = only_answer("-c", file, "--csv", load, "--gpus", 8)
    assert offered["missing"] == ["engines that run, or `workers` in the planner file"]
    assert offered["gpus"] == 8


def test_a_history_without_requests_is_undecided(file: Path, tmp_path: Path) -> None:
    path = tmp_path / "uncounted.csv"
    rows = [f"{300 * step},{1000},{100}" for step in range(100)]
    path.write_text("\n".join(["t_s,prompt_tokens_per_s,output_tokens_per_s", *rows]))

    assert only_answer("-c", file, "--csv", path)["missing"] == [
        "30 requests of the last day or more"
    ]


@pytest.mark.parametrize("wrong", ["0", "-1", "50e9", ".inf", "fast"])
def test_an_invalid_link_bandwidth_is_reported_with_its_line(
    load: Path, file: Path, wrong: str
) -> None:
    file.write_text(TARGETS + f"kv_link_bytes_per_second: {wrong}\n" + MIXED)

    code, out, err = run("separation", "-c", file, "--csv", load)

    assert (code, out) == (2, "")
    assert "planner.yaml:2: kv_link_bytes_per_second: expected bytes a second" in err


@pytest.mark.parametrize("options", [("--gpus", 0), ("--load", 0), ("--load", "nan")])
def test_invalid_options_are_refused(load: Path, file: Path, options: object) -> None:
    assert isinstance(options, tuple)
    assert run("separation", "-c", file, "--csv", load, *options)[0] == 2


@pytest.mark.parametrize("command", ["separation", "plan", "whatif", "forecast", "backtest"])
def test_an_empty_column_of_requests_is_accepted(command: str, file: Path, tmp_path: Path) -> None:
    path = tmp_path / "empty.csv"
    head = "t_s,requests_per_s,prompt_tokens_per_s,output_tokens_per_s"
    path.write_text("\n".join([head, *(f"{300 * step},,1000,100" for step in range(100))]))
    options = () if command in ("forecast", "backtest") else ("-c", file)

    assert run(command, *options, "--csv", path)[0] == 0
