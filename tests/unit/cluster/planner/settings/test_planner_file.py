from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
import yaml

from disagg_cluster.config.problems import ConfigError
from disagg_cluster.planner.settings.planner_file import (
    PlannerConfig,
    planner_file_schema,
    read_planner_file,
)
from disagg_cluster.simulator.engine.hardware import MODELS
from support.json_schemas import fits


def test_an_empty_file_is_all_defaults(tmp_path: Path) -> None:
    path = tmp_path / "planner.yaml"
    path.write_text("# nothing\n")

    assert read_planner_file(path) == PlannerConfig()
    assert PlannerConfig().listen.metrics_address.port == 9848


def test_paths_count_from_the_folder_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "planner.yaml"
    path.write_text("prometheus: {http_config: key.yaml}\nlock_file: run/lock\n")

    config = read_planner_file(path)

    assert config.prometheus.http_config == str(tmp_path / "key.yaml")
    assert config.lock_file == str(tmp_path / "run" / "lock")


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("rebalance: {mode: off}", True),
        ("rebalance: {mode: advise}\nmodels: [{model_name: llama}]", True),
        ("rebalance: {mode: on}", False),
        ("evry_seconds: 60", False),
        ("history: {days: 400}", False),
        ("models: {model_name: llama}", False),
    ],
)
def test_the_schema_accepts_what_a_planner_accepts(
    text: str, matches: bool, tmp_path: Path
) -> None:
    path = tmp_path / "planner.yaml"
    path.write_text(text)

    assert fits(yaml.safe_load(text), planner_file_schema()) is matches
    with contextlib.nullcontext() if matches else pytest.raises(ConfigError):
        read_planner_file(path)


def test_the_schema_accepts_the_shipped_planner_file() -> None:
    example = Path(__file__).parents[5] / "examples" / "planner" / "planner.yaml"

    assert fits(yaml.safe_load(example.read_text(encoding="utf-8")), planner_file_schema())


def test_every_problem_is_reported_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "planner.yaml"
    path.write_text(
        "prometheus:\n  url: prometheus:9090\nhistory:\n  days: 400\nevry_seconds: 60\n"
    )

    with pytest.raises(ConfigError) as error:
        read_planner_file(path)

    found = {(each.path, each.line) for each in error.value.problems}
    assert found == {("prometheus.url", 2), ("history.days", 4), ("evry_seconds", 5)}
    assert "every_seconds" in str(error.value)


@pytest.mark.parametrize(
    ("number", "hint"),
    [
        ("50e9", "an exponent needs a point and a sign, as in 5.0e+10"),
        ("5.0e10", "an exponent needs a point and a sign, as in 5.0e+10"),
        ("'5.0e+10'", "write it without quotes"),
        ("'50'", "write it without quotes"),
    ],
)
def test_a_number_that_yaml_takes_for_text_is_told_from_one_in_quotes(
    number: str, hint: str, tmp_path: Path
) -> None:
    path = tmp_path / "planner.yaml"
    path.write_text(f"kv_link_bytes_per_second: {number}\n")

    with pytest.raises(ConfigError) as caught:
        read_planner_file(path)
    assert str(caught.value).endswith(hint)


def test_problems_of_workers_are_reported_with_all_others(tmp_path: Path) -> None:
    path = tmp_path / "planner.yaml"
    path.write_text(
        "evry_seconds: 60\nmodels:\n  - workers:\n"
        "    - {role: encode, gpu_name: H200, priced_as: llama}\n"
    )

    with pytest.raises(ConfigError) as error:
        read_planner_file(path)

    worker = "models[0].workers[0]"
    assert {each.path for each in error.value.problems} == {
        "evry_seconds",
        *(f"{worker}.{key}" for key in ("role", "gpu_name", "priced_as")),
    }
    assert "not 'H200'" in str(error.value)


def test_a_model_covered_by_an_earlier_one_is_rejected(tmp_path: Path) -> None:
    """Only the first match counts; the second would be ignored silently."""
    path = tmp_path / "planner.yaml"
    path.write_text(
        "models:\n  - {model_name: a, engine_namespace: x}\n  - {model_name: a}\n"
        "  - {model_name: a, engine_namespace: y}\n  - {model_name: b}\n"
    )

    with pytest.raises(ConfigError) as error:
        read_planner_file(path)

    assert [(each.path, each.line) for each in error.value.problems] == [("models[2]", 4)]
    assert "models[1] covers it already" in str(error.value)


@pytest.mark.parametrize("text", ["- a list\n", "a: [\n", "\x00"])
def test_a_file_that_is_no_mapping_is_rejected(text: str, tmp_path: Path) -> None:
    path = tmp_path / "planner.yaml"
    path.write_text(text)

    with pytest.raises(ConfigError):
        read_planner_file(path)


PROFILED = """\
models:
  - model_name: llama
    workers:
      - {role: decode, gpu_name: a GPU of ours, profile: p.json}
      - {role: prefill, gpu_name: a GPU of ours, profile: p.json}
"""
PROFILE = """\
{"disagg_node_profile": 1, "model_name": "llama",
 "decode": {"target_seconds": 0.05, "max_num_seqs": 4,
  "contexts": [{"context_tokens": 100, "steps": [{"size": 1, "seconds": 0.02}]}]}}
"""


def test_a_worker_is_priced_by_a_profile_beside_the_file(tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text(PROFILE)
    (tmp_path / "planner.yaml").write_text(PROFILED.partition("      - {role: prefill")[0])

    (worker,) = read_planner_file(tmp_path / "planner.yaml").models[0].workers

    assert worker.costs().step_seconds(0, 0, 1, 100) == 0.02


def test_a_profile_without_data_for_the_role_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text(PROFILE)
    (tmp_path / "planner.yaml").write_text(PROFILED)

    with pytest.raises(ConfigError, match=r"workers\[1\]\.profile.*no prefill"):
        read_planner_file(tmp_path / "planner.yaml")


def test_a_missing_profile_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "planner.yaml").write_text(PROFILED)

    with pytest.raises(ConfigError, match=r"p\.json.*cannot be read"):
        read_planner_file(tmp_path / "planner.yaml")


@pytest.mark.parametrize("priced", ["", f", profile: p.json, priced_as: {MODELS[0].name}"])
def test_a_worker_has_a_price_or_a_profile_and_not_both(tmp_path: Path, priced: str) -> None:
    (tmp_path / "p.json").write_text(PROFILE)
    worker = f"{{role: decode, gpu_name: NVIDIA H200{priced}}}"
    (tmp_path / "planner.yaml").write_text(f"models: [{{workers: [{worker}]}}]\n")

    with pytest.raises(ConfigError, match="one of priced_as and profile"):
        read_planner_file(tmp_path / "planner.yaml")


def test_moves_are_limited_and_their_cost_assumed_where_none_was_measured(tmp_path: Path) -> None:
    path = tmp_path / "planner.yaml"
    path.write_text(
        "least_engines: 0\ntiming: {lead_seconds: 100, drain_seconds: 20}\n"
        "rebalance: {mode: act, moves_per_hour: 2, run_dir: run}\n"
    )

    config = read_planner_file(path)

    assert config.rebalance.run_dir == str(tmp_path / "run")
    limits = config.rebalance_limits()
    assert (limits.moves_per_hour, limits.least_engines) == (2, 1)
    assert config.move_cost(None).downtime_seconds == 120.0
    assert config.move_cost(7.5).downtime_seconds == 7.5


@pytest.mark.parametrize(
    ("line", "where"),
    [
        ("mode: on", "mode"),
        ("mode: act", "mode"),
        ("moves_per_hour: 0", "moves_per_hour"),
        ("cool_down_seconds: -1", "cool_down_seconds"),
        ("horizon_seconds: 5", "horizon_seconds"),
        ("gain_ratio: 0.5", "gain_ratio"),
        ("downtime_seconds: 0", "downtime_seconds"),
        ("least: 2", "least"),
    ],
)
def test_invalid_rebalance_settings_are_rejected(tmp_path: Path, line: str, where: str) -> None:
    path = tmp_path / "planner.yaml"
    path.write_text(f"rebalance:\n  {line}\n")

    with pytest.raises(ConfigError) as error:
        read_planner_file(path)

    assert [(each.path, each.line) for each in error.value.problems] == [(f"rebalance.{where}", 2)]


@pytest.mark.parametrize(
    ("text", "where", "expected"),
    [
        ("timing:\n  lead_seconds: 1.0e+300", "timing.lead_seconds", "to 604800"),
        ("timing:\n  drain_seconds: .inf", "timing.drain_seconds", "to 604800"),
        ("timing:\n  hold_seconds: .nan", "timing.hold_seconds", "to 604800"),
        ("gpus:\n  - {gpu_name: x, price_per_hour: 1.0e+308}", "gpus[0].price_per_hour", "to 1e9"),
        ("gpus:\n  - {gpu_name: x, idle_watts: 1.0e+308}", "gpus[0].idle_watts", "to 1e6"),
        ("\nevery_seconds: 1.0e+300", "every_seconds", "10 to 86400"),
        ("\nkv_link_bytes_per_second: 1.0e-300", "kv_link_bytes_per_second", "from 1 to 1e15"),
        ("\nleast_engines: 100000000000000000000", "least_engines", "0 to 100000"),
    ],
)
def test_absurd_numbers_are_refused_with_their_line(
    tmp_path: Path, text: str, where: str, expected: str
) -> None:
    path = tmp_path / "planner.yaml"
    path.write_text(f"{text}\n")

    with pytest.raises(ConfigError, match=expected) as error:
        read_planner_file(path)

    assert [(each.path, each.line) for each in error.value.problems] == [(where, 2)]


@pytest.mark.parametrize("key", ["gpus", "engines", "max_num_batched_tokens", "max_num_seqs"])
def test_absurd_numbers_of_a_worker_are_refused(tmp_path: Path, key: str) -> None:
    path = tmp_path / "planner.yaml"
    worker = f"role: decode, gpu_name: NVIDIA H200, priced_as: {MODELS[0].name}"
    path.write_text(f"models:\n  - workers: [{{{worker}, {key}: {10**20}}}]\n")

    with pytest.raises(ConfigError) as error:
        read_planner_file(path)

    place = f"models[0].workers[0].{key}"
    assert [(each.path, each.line) for each in error.value.problems] == [(place, 2)]


@pytest.mark.parametrize(
    ("offer", "gpus_per_node"),
    [
        ("{gpu_name: x}", 8),
        ("{gpu_name: x, most_gpus: 64}", 8),
        ("{gpu_name: x, most_gpus: 4}", 4),
        ("{gpu_name: x, most_gpus: 4, gpus_per_node: 2}", 2),
        ("{gpu_name: x, most_gpus: 0}", 8),
    ],
)
def test_fewer_gpus_than_a_usual_node_has_are_one_node(
    tmp_path: Path, offer: str, gpus_per_node: int
) -> None:
    path = tmp_path / "planner.yaml"
    path.write_text(f"gpus: [{offer}]\n")

    (found,) = read_planner_file(path).bounds().offers

    assert found.gpus_per_node == gpus_per_node


def test_fewer_gpus_than_one_of_their_nodes_are_refused(tmp_path: Path) -> None:
    """Nothing could be planned on them, and engines that run there would have to go."""
    path = tmp_path / "planner.yaml"
    path.write_text("gpus:\n  - gpu_name: x\n    most_gpus: 4\n    gpus_per_node: 8\n")

    with pytest.raises(ConfigError, match="one node of 8, not 4 GPUs") as error:
        read_planner_file(path)

    assert [(each.path, each.line) for each in error.value.problems] == [("gpus[0].most_gpus", 3)]
