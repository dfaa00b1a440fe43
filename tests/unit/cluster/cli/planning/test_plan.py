from __future__ import annotations

import json
from datetime import datetime
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest
from click.testing import CliRunner

from disagg_cluster.cli.main import main
from support.http_serving import serving
from support.pictures import texts_of

START = 1_700_000_000 // 300 * 300
LLAMA = "meta-llama/Llama-3.3-70B-Instruct"
WORKERS = f"""\
models:
  - workers:
      - {{role: prefill, gpu_name: NVIDIA H200, gpus: 4, priced_as: {LLAMA}, engines: 1}}
      - {{role: decode, gpu_name: NVIDIA H200, gpus: 4, priced_as: {LLAMA}, engines: 1}}
"""
FILE = f"""\
targets: {{ttft_seconds: 2, itl_seconds: 0.05}}
gpus: [{{gpu_name: NVIDIA H200, most_gpus: 64, price_per_hour: 3}}]
{WORKERS}"""


def run(*args: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(main, [str(each) for each in args], prog_name="disagg-node")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve hours of 100 requests a second, of which one engine of each role is not enough."""
    path = tmp_path_factory.mktemp("load") / "load.csv"
    rng = np.random.default_rng(5)
    rows = ["t_s,requests_per_s,prompt_tokens_per_s,output_tokens_per_s"]
    for step in range(144):
        rate = 100 * rng.lognormal(0, 0.02)
        rows.append(f"{START + 300 * step},{rate:.2f},{rate * 500:.1f},{rate * 100:.1f}")
    path.write_text("\n".join(rows))
    return path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "planner.yaml"
    path.write_text(FILE)
    return path


def test_a_plan_for_a_shortage_names_the_gpus_to_add_the_reason_and_the_cost_of_waiting(
    load: Path, file: Path
) -> None:
    code, out, err = run("plan", "-c", file, "--csv", load)

    assert (code, err) == (0, "")
    assert "add " in out
    assert "x 4 NVIDIA H200 for decode of all requests" in out
    assert "decode on NVIDIA H200: 90 % of futures need at most" in out
    assert "so far: 8 forecasts" in out
    assert "doing nothing: 360 minutes over target" in out


def test_json_has_every_row_with_units_and_zone(load: Path, file: Path) -> None:
    code, out, _ = run("plan", "-c", file, "--csv", load, "--json")
    whole = json.loads(out)

    assert code == 0
    assert whole["cluster"] == ""
    assert datetime.fromisoformat(whole["made_at"]).timestamp() == START + 144 * 300
    (model,) = whole["models"]
    assert [role["role"] for role in model["roles"]] == ["prefill", "decode"]
    for role in model["roles"]:
        assert role["reasons"]
        for row in role["horizons"]:
            assert row["current_gpus"] == 4
            assert row["needed_gpus"] > 4
            assert row["needed_gpus"] % 4 == 0
    assert {each["kind"] for each in whole["actions"]} == {"add"}


def test_a_picture_of_whatif_shows_both_plans_and_why_one_is_undecided(
    load: Path, file: Path, tmp_path: Path
) -> None:
    path, other = tmp_path / "change.svg", tmp_path / "other.yaml"
    other.write_text(WORKERS.partition("      - {role: decode")[0])

    code, _, err = run("whatif", "-c", file, "--with", other, "--csv", load, "--plot", path)

    assert (code, err) == (0, f"{path}\n")
    texts = texts_of(path)
    assert {"prefill on NVIDIA H200: all requests", "decode on NVIDIA H200: all requests"} <= {
        *texts
    }
    assert texts.count("as it is") == 2
    assert texts.count("GPUs") == 2
    assert any(text.startswith("if: undecided: no capacity for decode") for text in texts)
    titles = [text.partition(" on ")[0] for text in texts if " on NVIDIA H200: " in text]
    assert titles == ["prefill", "decode"]
    # As wide as one of two plots in a row.
    assert max(map(len, texts)) <= 76


def test_a_picture_of_a_plan_shows_needed_recommended_and_present_gpus_of_each_role(
    load: Path, file: Path, tmp_path: Path
) -> None:
    path = tmp_path / "plan.svg"

    assert run("plan", "-c", file, "--csv", load, "--plot", path)[0] == 0

    texts = texts_of(path)
    for role in ("prefill", "decode"):
        assert texts.count(f"{role} on NVIDIA H200: all requests") == 1
    for series in ("needed by 50 % of futures at most", "recommended", "there now: 4", "GPUs"):
        assert texts.count(series) == 2


def test_longer_prompts_need_more_prefill_gpus_and_cache_hits_fewer(load: Path, file: Path) -> None:
    def most(*options: object) -> dict[str, int]:
        whole = json.loads(run("whatif", "-c", file, "--csv", load, "--json", *options)[1])
        return {
            role["role"]: max(row["needed_gpus"] for row in role["horizons"])
            for role in whole["then"]["models"][0]["roles"]
        }

    now = most()
    assert most("--prompt-factor", 3)["prefill"] > now["prefill"]
    assert most("--hit-rate", 0.8)["prefill"] < now["prefill"]
    assert most("--output-factor", 3)["decode"] > now["decode"]


def test_whatif_shows_both_beside_each_other(load: Path, file: Path) -> None:
    code, out, _ = run("whatif", "-c", file, "--csv", load, "--requests-factor", 2)

    assert code == 0
    assert out.startswith("if: requests times 2\n\n")
    heads = [line.split("  ")[0] for line in out.splitlines() if "NVIDIA H200" in line]
    assert heads == ["as it is", "as it is", "if", "if"]


def test_the_json_of_whatif_names_the_other_planner_file(load: Path, file: Path) -> None:
    alone, other = (
        json.loads(run("whatif", "-c", file, "--csv", load, "--json", *options)[1])["if"]
        for options in ((), ("--with", file))
    )

    assert (alone["planner_file"], other["planner_file"]) == (None, str(file))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--prompt-factor", 2, "--hit-rate", 0.5), "prompt lengths times 2, 50 % of each prompt"),
        (("--output-factor", 0.5), "output lengths times 0.5"),
        ((), "nothing differs; --requests-factor, --with and others say what does"),
    ],
)
def test_whatif_says_what_differs(
    options: tuple[object, ...], said: str, load: Path, file: Path
) -> None:
    assert run("whatif", "-c", file, "--csv", load, *options)[1].startswith(f"if: {said}")


def test_a_plan_without_workers_or_request_counts_is_undecided_with_the_reason(
    load: Path, file: Path, tmp_path: Path
) -> None:
    file.write_text("every_seconds: 300\n")
    code, out, _ = run("plan", "-c", file, "--csv", load)
    assert code == 0
    assert "undecided: no capacity for prefill: no workers for prefill are offered" in out

    file.write_text(FILE)
    uncounted = tmp_path / "uncounted.csv"
    rows = [f"{300 * step},{1000},{100}" for step in range(100)]
    uncounted.write_text("\n".join(["t_s,prompt_tokens_per_s,output_tokens_per_s", *rows]))
    assert (
        "undecided: no forecast: how many requests arrive is not known"
        in (run("plan", "-c", file, "--csv", uncounted)[1])
    )


def test_an_unknown_key_of_a_planner_file_is_reported(file: Path) -> None:
    file.write_text(FILE.replace("NVIDIA H200, gpus: 4", "H200, gpus: 4").replace("ttft", "tft"))

    code, out, err = run("plan", "-c", file, "--csv", "/nowhere.csv")

    assert (code, out) == (2, "")
    assert "targets.tft_seconds" in err
    assert "models" not in err or "gpu_name" in err


def test_a_load_file_belongs_to_the_only_model_or_to_the_model_option(
    load: Path, file: Path
) -> None:
    named = FILE.replace("  - workers:", "  - model_name: llama\n    workers:")
    file.write_text(named)
    assert "for decode of model llama" in run("plan", "-c", file, "--csv", load)[1]

    file.write_text(f"{named}  - model_name: mistral\n")
    assert (
        "for decode of model llama" in run("plan", "-c", file, "--csv", load, "--model", "llama")[1]
    )
    for options, told in (
        ((), "--model names one of 'llama', 'mistral'"),
        (("--model", "lama"), "knows no model 'lama'; it knows 'llama', 'mistral'"),
    ):
        code, out, err = run("plan", "-c", file, "--csv", load, *options)
        assert (code, out) == (2, "")
        assert told in err


def test_a_check_of_a_planner_file_also_reads_the_files_that_it_names(file: Path) -> None:
    file.write_text("prometheus: {http_config: nowhere.yaml}\n")

    code, out, err = run("planner", "--check", "-c", file)

    assert (code, out) == (2, "")
    assert "nowhere.yaml: cannot be read" in err


@pytest.mark.parametrize("option", ["--requests-factor", "--hit-rate"])
def test_a_factor_that_is_not_a_number_is_refused(file: Path, option: str) -> None:
    code, out, err = run("whatif", "-c", file, "--csv", "/nowhere.csv", option, "nan")

    assert (code, out) == (2, "")
    assert "nan is not a number" in err


def test_a_plan_reports_past_waste_and_whatif_does_not(load: Path, file: Path) -> None:
    """One engine of each role was never enough, so nothing was idle."""
    out = run("plan", "-c", file, "--csv", load)[1]
    assert "last 12 hours, had the engines of the planner file run all along: 0.0 of 96.0" in out
    assert "best fixed split: " in out

    (model,) = json.loads(run("plan", "-c", file, "--csv", load, "--json")[1])["models"]
    assert model["in_hindsight"]["present"]["minutes_over_target"] == pytest.approx(720.0)
    assert model["in_hindsight"]["best_static"]["gpu_hours"] <= 96.0

    then = json.loads(run("whatif", "-c", file, "--csv", load, "--json")[1])
    assert "in_hindsight" not in then["now"]["models"][0]


def test_a_load_file_without_engine_counts_leaves_the_hindsight_undecided(
    load: Path, file: Path
) -> None:
    file.write_text(FILE.replace(", engines: 1", ""))

    assert (
        "in hindsight undecided: which engines there were is not known"
        in (run("plan", "-c", file, "--csv", load)[1])
    )


def test_a_plan_of_mixed_engines_has_a_verdict_on_separation(load: Path, file: Path) -> None:
    assert "separation: " not in run("plan", "-c", file, "--csv", load)[1]

    kept = WORKERS.replace("role: decode", "role: mixed").splitlines()
    mixed = "\n".join(line for line in kept if "prefill" not in line)
    file.write_text(FILE.replace(WORKERS, mixed))
    out = run("plan", "-c", file, "--csv", load)[1]
    assert (
        "separation: undecided, 4 x NVIDIA H200, mixed today; what is missing: the bandwidth" in out
    )
    file.write_text(f"kv_link_bytes_per_second: 50000000000\n{FILE.replace(WORKERS, mixed)}")
    (model,) = json.loads(run("plan", "-c", file, "--csv", load, "--json")[1])["models"]
    (answer,) = model["separation"]
    assert (answer["today"], answer["gpus"]) == ("mixed", 4)
    assert answer["verdict"] in {"stay mixed", "separate", "undecided"}


@pytest.mark.parametrize(("options", "cluster"), [((), "east"), (("--cluster", "west"), "west")])
def test_the_planner_file_sets_the_cluster_also_of_another_prometheus(
    file: Path, options: tuple[str, ...], cluster: str
) -> None:
    asked: list[str] = []

    class Empty(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(parse_qs(urlsplit(self.path).query)["query"][0])
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"status":"success","data":{"resultType":"matrix","result":[]}}')

        def log_message(self, *_: object) -> None:
            pass

    file.write_text(f"cluster: east\n{FILE}")
    with serving(Empty) as url:
        code, _, _ = run("plan", "-c", file, "--prometheus", url, "--since", "1h", *options)

    assert code == 1
    assert f'cluster="{cluster}"' in asked[0]


@pytest.mark.parametrize("command", ["plan", "whatif", "rebalance", "separation"])
def test_help_names_the_planner_file_as_the_default_source(command: str) -> None:
    _, text, _ = run(command, "--help")

    shown = " ".join(text.split())
    assert shown.count("[default: that of the planner file]") == 2
    assert "127.0.0.1:9090" not in shown
