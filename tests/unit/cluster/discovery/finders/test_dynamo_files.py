"""Dynamo's workers in their discovery files."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from disagg_cluster.discovery.finders import own_addresses
from disagg_cluster.discovery.finders.declared import (
    STALE_SECONDS,
    DynamoFinder,
    worker_of_page,
)
from disagg_cluster.discovery.observations.merge import merge_observations
from disagg_cluster.discovery.observations.types import (
    Claimed,
    Endpoint,
    Finder,
    Leader,
    Observation,
)
from disagg_exporter.model import Role
from disagg_exporter.roles.judge import explain
from support.collected import is_collected_in_json

DATA = Path(__file__).parents[4] / "data"

# As ai-dynamo 1.6.1's mocker wrote them, without unused fields.
WORKER = 18063493074947125173
ENDPOINT = {
    "type": "Endpoint",
    "component": "prefill",
    "endpoint": "generate",
    "namespace": "dynamo",
    "instance_id": WORKER,
    "transport": {"tcp": "192.0.2.2:46633/faae6b3f46f3afb5/dynamo/prefill/generate"},
}
CARD = {
    "type": "Model",
    "instance_id": WORKER,
    "card_json": {
        "worker_type": "prefill",
        "needs": [["decode"]],
        "model_info": {
            "hf_config_json": {"path": "http://192.0.2.2:18101/v1/metadata/dynamo/x/config.json"}
        },
    },
}


def write(folder: Path, bucket: str, name: str, told: object) -> Path:
    path = folder / "v1" / bucket / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(told if isinstance(told, str) else json.dumps(told))
    return path


def look(folder: Path, **more: Any) -> tuple[Observation, ...]:
    found = DynamoFinder(folder, **more).scan()
    assert found.lost == ""
    return found.observations


def test_a_worker_is_found_with_its_role_its_id_and_where_it_listens(tmp_path: Path) -> None:
    write(tmp_path, "instances", "dynamo%2Fprefill%2Fgenerate%2Ffaae", ENDPOINT)
    write(tmp_path, "mdc", "dynamo%2Fprefill%2Fgenerate%2Ffaae", CARD)

    [worker] = look(tmp_path)

    assert worker.claimed == Claimed("faae6b3f46f3afb5")
    assert worker.endpoints == (Endpoint("192.0.2.2", 18101),)
    assert Endpoint("192.0.2.2", 46633) in worker.also_at
    assert explain(worker.markers).role is Role.PREFILL


@pytest.mark.parametrize("word", ["decode", "aggregated"])
def test_the_role_is_read_from_the_model_card(tmp_path: Path, word: str) -> None:
    write(tmp_path, "instances", "a", ENDPOINT | {"component": "backend"})
    write(tmp_path, "mdc", "a", CARD | {"card_json": {"worker_type": word}})

    [worker] = look(tmp_path)

    expected = Role.DECODE if word == "decode" else Role.MIXED
    assert explain(worker.markers).role is expected


def test_the_process_on_the_request_port_is_that_worker(tmp_path: Path) -> None:
    write(tmp_path, "instances", "a", ENDPOINT)
    process = Observation(
        finder=Finder.PROCESSES,
        kind="dynamo",
        endpoints=(Endpoint("127.0.0.1", 18101), Endpoint("192.0.2.2", 46633)),
        leader=Leader(7, 1),
        pids=frozenset({7}),
    )

    [engine] = merge_observations([process, *look(tmp_path)])

    assert engine.claimed == Claimed("faae6b3f46f3afb5")
    assert engine.leader == Leader(7, 1)
    assert engine.endpoints[0] == Endpoint("127.0.0.1", 18101)


def test_other_endpoints_of_a_worker_are_no_workers(tmp_path: Path) -> None:
    write(tmp_path, "instances", "a", ENDPOINT | {"endpoint": "worker_kv_query_source"})

    assert look(tmp_path) == ()


def test_a_stale_file_belongs_to_an_ended_worker(tmp_path: Path) -> None:
    path = write(tmp_path, "instances", "a", ENDPOINT)
    os.utime(path, (1000.0, 1000.0))

    assert len(look(tmp_path, wall=lambda: 1000.0 + STALE_SECONDS)) == 1
    assert look(tmp_path, wall=lambda: 1000.0 + STALE_SECONDS + 1) == ()


@pytest.mark.parametrize("step_seconds", [-7200.0, 7200.0])
def test_a_step_of_the_clock_neither_drops_a_live_worker_nor_keeps_an_ended_one(
    tmp_path: Path, step_seconds: float
) -> None:
    live = write(tmp_path, "instances", "live", ENDPOINT)
    ended = write(tmp_path, "instances", "ended", ENDPOINT | {"instance_id": 1})
    now, wall_seconds = 0, 1e9
    finder = DynamoFinder(tmp_path, wall=lambda: wall_seconds + now, clock=lambda: now)
    for path in (live, ended):
        os.utime(path, (wall_seconds, wall_seconds))
    assert len(finder.scan().observations) == 2

    seen = []
    for now in range(5, 31, 5):
        if now == 10:
            wall_seconds += step_seconds  # and the file is renewed after the scan
        else:
            os.utime(live, (wall_seconds + now - 4, wall_seconds + now - 4))
        seen.append(len(finder.scan().observations))

    assert seen == [2, 2, 2, 2, 1, 1]


def test_workers_are_found_on_a_folder_whose_server_has_another_clock(tmp_path: Path) -> None:
    now = 0
    finder = DynamoFinder(tmp_path, wall=lambda: 1e9 + now, clock=lambda: now)
    live = write(tmp_path, "instances", "live", ENDPOINT)
    os.utime(live, (9e8, 9e8))
    assert finder.scan().observations == ()

    now = 5
    os.utime(live, (9e8 + 5, 9e8 + 5))

    assert len(finder.scan().observations) == 1


def test_a_missing_folder_is_reported_with_its_consequence(tmp_path: Path) -> None:
    lost = DynamoFinder(tmp_path / "no").scan().lost

    assert "registration" in lost
    assert str(tmp_path / "no") in lost


@pytest.mark.parametrize(
    "told",
    [
        "",
        "[]",
        "nonsense",
        "[" * 100_000,
        ENDPOINT | {"instance_id": "ff"},
        ENDPOINT | {"instance_id": -1},
        ENDPOINT | {"instance_id": 1 << 70},
        ENDPOINT | {"instance_id": True} | {"endpoint": ["generate"]},
    ],
)
def test_invalid_files_give_no_worker(tmp_path: Path, told: object) -> None:
    write(tmp_path, "instances", "a", told)

    assert look(tmp_path) == ()
    # Where it is nested, nothing can be finalized.
    assert not is_collected_in_json(lambda: look(tmp_path))


@pytest.mark.parametrize(
    "transport",
    [
        *(None, "x", {"nats": "u"}, {"tcp": 7}),
        *({"tcp": text} for text in ("no port", ":80", "h:99999", "h:1" + "1" * 5000, "h\0h:80")),
    ],
)
def test_a_worker_without_a_matching_process_is_still_registered(
    tmp_path: Path, transport: object
) -> None:
    write(tmp_path, "instances", "a", ENDPOINT | {"transport": transport})

    [worker] = look(tmp_path)

    assert (worker.also_at, worker.endpoints) == ((), ())


def test_links_are_not_followed(tmp_path: Path) -> None:
    outside = write(tmp_path / "elsewhere", "instances", "a", ENDPOINT)
    (tmp_path / "v1" / "instances").mkdir(parents=True)
    (tmp_path / "v1" / "instances" / "a").symlink_to(outside)

    assert look(tmp_path) == ()


def test_a_worker_writes_its_id_on_its_page_in_hex() -> None:
    page = (DATA / "dynamo-1.6.1" / "decode.prom").read_text().splitlines()

    assert int(worker_of_page(page), 16) > 0
    assert worker_of_page(('vllm:x{worker_id="ab"} 1',)) == ""


def test_a_host_name_is_resolved_once_for_all_workers_and_scans(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def is_own(host: str) -> bool:
        asked.append(host)
        return True

    monkeypatch.setattr(own_addresses, "is_own_address", is_own)
    for number in range(3):
        transport = {"tcp": f"gpu-7:{46000 + number}/x/dynamo/prefill/generate"}
        named = ENDPOINT | {"instance_id": WORKER - number, "transport": transport}
        write(tmp_path, "instances", f"{number}", named)
    finder = DynamoFinder(tmp_path)

    for _ in range(2):
        assert {place.host for each in finder.scan().observations for place in each.also_at} == {
            "gpu-7",
            "127.0.0.1",
        }
    assert asked == ["gpu-7"]
