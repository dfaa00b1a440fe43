"""The plan of `make run-cluster`: files that their readers take, a network without clashes."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from scripts.local_cluster import users
from scripts.local_cluster.plan import SWITCH, ClusterPlan, Machine, from_json, preparation
from scripts.local_cluster.simulated import NODES, simulated_cluster

from disagg_cluster.nodefile import from_mapping
from disagg_cluster.planner.settings.planner_file import read_planner_file
from disagg_exporter.errors import DisaggError

PLAN = simulated_cluster(Path("/usr/bin/prometheus"), 9847)
INTERFACE_NAME_CHARACTERS = 15


def test_a_plan_round_trips_through_json() -> None:
    assert from_json(PLAN.to_json()) == PLAN


def test_the_node_files_are_valid_and_name_nodes_and_cluster() -> None:
    configs = [
        from_mapping(yaml.safe_load(PLAN.files[f"{PLAN.logs}/{name}.yaml"]), name) for name in NODES
    ]

    assert [config.node for config in configs] == list(NODES)
    assert {config.cluster for config in configs} == {"local"}
    assert [worker.host for config in configs for worker in config.workers[:1]] == [
        machine.address for machine in PLAN.machines
    ]


def test_the_planner_file_is_valid(tmp_path: Path) -> None:
    file = tmp_path / "planner.yaml"
    file.write_text(PLAN.files[f"{PLAN.logs}/planner.yaml"], encoding="utf-8")

    assert read_planner_file(file).cluster == "local"


def test_prometheus_scrapes_all_nodes_as_one_cluster_with_our_rules() -> None:
    config = yaml.safe_load(PLAN.files[f"{PLAN.logs}/prometheus/prometheus.yaml"])

    [job] = config["scrape_configs"]
    assert [each["labels"] for each in job["static_configs"]] == [
        {"node": name, "cluster": "local"} for name in NODES
    ]
    assert list(Path("/").glob(config["rule_files"][0].lstrip("/")))


@pytest.mark.parametrize(
    ("first", "ports"), [(9847, [9847, 9848, 9849, 9850, 9851]), (0, [0, 0, 0, 0, 0])]
)
def test_the_doors_have_consecutive_ports_or_any_free_ones(first: int, ports: list[int]) -> None:
    plan = simulated_cluster(Path("prometheus"), first)

    assert [door.port for door in plan.doors] == ports


def test_links_are_named_after_their_machines() -> None:
    made = [argv for argv in preparation(PLAN) if argv[:4] == ("ip", "link", "add", "name")]

    names = [argv[4] for argv in made]
    assert names == [SWITCH, *NODES]
    assert max(map(len, names)) <= INTERFACE_NAME_CHARACTERS


def test_the_switch_is_in_the_network_of_its_machines() -> None:
    plan = ClusterPlan((Machine("prefill-7", "10.0.0.7"), Machine("decode-8", "10.0.0.8")))

    assert plan.switch_address == "10.0.0.254"


def test_an_engine_that_does_not_answer_gets_no_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(url: str, _seconds: float) -> bytes:
        if "gone" in url:
            raise DisaggError(url)
        return b""

    monkeypatch.setattr(users, "fetch", answer)
    healthy = users.HealthyEngines(
        {"prefill": ["http://a", "http://gone"], "decode": ["http://gone"]}
    )

    before = healthy.pools()
    healthy.check()
    now = healthy.pools()

    assert (before.prefill, before.decode) == ((), ())
    assert (now.prefill, now.decode) == (("http://a",), ())
