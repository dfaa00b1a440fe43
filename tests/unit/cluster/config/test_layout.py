from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disagg_cluster.config.layout import GpuRequest, allocate, assume, place, place_among
from disagg_cluster.config.problems import ConfigError
from disagg_cluster.nodefile import read
from disagg_exporter.devices.source import pseudo_device
from disagg_exporter.model import Device
from support.node_files import HAS_ALL, gpu, node, worker

FOUR = tuple(gpu(index) for index in range(4))


def indices(devices: tuple[Device, ...]) -> list[int]:
    return [device.index for device in devices]


def test_gpus_are_found_by_index_and_by_uuid_in_the_order_of_the_file() -> None:
    layout = place(node(worker(gpus=[2, "GPU-0000"])), FOUR)

    assert indices(layout.of("mixed-0").devices) == [2, 0]
    assert layout.of("mixed-0").gpus == ("GPU-0002", "GPU-0000")
    assert layout.of("mixed-0").on_gpus
    assert indices(layout.free) == [1, 3]


def test_a_gpu_count_gets_the_lowest_gpus_not_requested_by_name() -> None:
    config = node(worker("a", gpus=2, port=1), worker("b", gpus=[0], port=2))

    layout = place(config, FOUR)

    assert indices(layout.of("a").devices) == [1, 2]
    assert indices(layout.of("b").devices) == [0]


@pytest.mark.parametrize("devices", [None, ()])
def test_without_gpus_every_worker_gets_a_pseudo_device(devices: tuple[Device, ...] | None) -> None:
    layout = place(node(worker("a", gpus=0, port=1), worker("b", gpus=0, port=2)), devices)

    assert layout.of("a").devices == (pseudo_device("a", 0),)
    assert layout.of("b").devices == (pseudo_device("b", 1),)
    assert not layout.of("a").on_gpus


def test_workers_that_run_keep_their_devices_when_others_come_and_go() -> None:
    before = node(
        worker("gone", gpus=1, port=1), worker("stays", gpus=1, port=2), worker("named", port=3)
    )
    layout = place(before, FOUR)
    new = node(worker("new", gpus=2, port=4)).workers
    after = before.model_copy(update={"workers": (*new, *before.workers[1:])})

    changed = place_among(layout, after)

    assert {name: indices(changed.of(name).devices) for name in ("stays", "named", "new")} == {
        "stays": indices(layout.of("stays").devices),
        "named": indices(layout.of("named").devices),
        "new": [index for index in range(4) if index not in (1, 2)],
    }


def test_a_count_gets_the_gpus_that_its_worker_still_holds_and_no_other_worker_gets_them() -> None:
    config = node(worker("new", gpus=1, port=1), worker("b", gpus=1, port=2), worker("c", port=3))

    layout = place(config, FOUR, held={"GPU-0000": "b", "GPU-0001": "c", "GPU-0003": "stray"})

    assert {name: layout.of(name).gpus for name in ("new", "b", "c")} == {
        "new": ("GPU-0002",),
        "b": ("GPU-0000",),
        "c": ("GPU-0001",),
    }


def test_a_worker_that_wants_a_single_gpu_is_refused_in_the_singular() -> None:
    found = allocate([GpuRequest(0, "a", 1), GpuRequest(1, "b", 1)], (gpu(0),))

    assert [finding.message for finding in found.findings] == ["1 GPU wanted, 0 of 1 free"]


def test_where_no_gpu_is_free_a_count_gets_what_no_worker_of_the_file_holds() -> None:
    config = node(worker("new", gpus=1, port=1), worker("b", gpus=1, port=2))

    layout = place(config, FOUR[:2], held={"GPU-0000": "b", "GPU-0001": "stray"})

    assert [layout.of(name).gpus for name in ("new", "b")] == [("GPU-0001",), ("GPU-0000",)]


def test_a_gpu_requested_by_name_is_given_though_a_counted_worker_still_holds_it() -> None:
    config = node(worker("counted", gpus=1, port=1), worker("named", gpus=[0], port=2))

    layout = place(config, FOUR, held={"GPU-0000": "counted"})

    assert [layout.of(name).gpus for name in ("counted", "named")] == [("GPU-0001",), ("GPU-0000",)]


def test_a_new_worker_gets_an_unused_gpu_rather_than_one_that_a_left_engine_holds() -> None:
    before = node(worker("stays", gpus=1, port=1))
    after = node(worker("new", gpus=1, port=2), worker("stays", gpus=1, port=1))

    changed = place_among(place(before, FOUR), after, held={"GPU-0000": "stays", "GPU-0001": "x"})

    assert [changed.of(name).gpus for name in ("new", "stays")] == [("GPU-0002",), ("GPU-0000",)]


def test_a_gpu_allocated_by_count_is_not_given_to_a_worker_that_names_it() -> None:
    before = node(worker("counted", gpus=1, port=1))
    after = node(worker("new", gpus=[0], port=2), worker("counted", gpus=1, port=1))

    with pytest.raises(ConfigError, match="already belongs to"):
        place_among(place(before, FOUR), after)


def test_a_new_worker_without_gpus_gets_a_pseudo_device_of_its_own() -> None:
    a, b = worker("a", gpus=0, port=1), worker("b", gpus=0, port=2)

    layout = place_among(place(node(a), None), node(a, b))

    assert [device.gpu for device in layout.devices] == ["cpu-a", "cpu-b"]


def test_a_worker_on_simulated_devices_is_not_on_gpus() -> None:
    simulated = (Device("GPU-sim-0000", 0, "Simulated GPU", "sim0"),)

    assert not place(node(worker(gpus=[0])), simulated).of("mixed-0").on_gpus


def test_missing_gpus_are_refused_with_the_available_ones() -> None:
    config = node(worker("a", gpus=[3, 4], port=1), worker("b", gpus=["GPU-9"], port=2))

    with pytest.raises(ConfigError) as refused:
        place(config, FOUR, "node.yaml")

    assert str(refused.value) == (
        "node.yaml: workers[0].gpus: there is no GPU 4\n"
        "    this node has 0, 1, 2, 3\n"
        "node.yaml: workers[1].gpus: there is no GPU GPU-9\n"
        "    this node has GPU-0000, GPU-0001, GPU-0002, GPU-0003"
    )
    assert refused.value.exit_code == 2


def test_a_missing_gpu_is_reported_at_its_line(tmp_path: Path) -> None:
    file = tmp_path / "node.yaml"
    file.write_text(
        "workers:\n  - name: a\n    role: mixed\n    model: org/m\n    port: 1\n    gpus: [9]\n"
    )

    told = read(file, HAS_ALL)
    with pytest.raises(ConfigError) as refused:
        place(told.config, FOUR, "node.yaml", told.lines)

    assert [problem.line for problem in refused.value.problems] == [6]


def test_one_gpu_named_by_index_and_by_uuid_is_refused_as_a_duplicate() -> None:
    """Only the node knows which index a UUID has: the file alone could not tell."""
    config = node(worker("a", gpus=[1], port=1), worker("b", gpus=["GPU-0001"], port=2))

    with pytest.raises(ConfigError, match=r"GPU GPU-0001 already belongs to a \(workers\[0\]\)"):
        place(config, FOUR)


def test_the_index_of_a_gpu_divided_into_instances_is_refused() -> None:
    divided = (gpu(0, "MIG-a"), gpu(0, "MIG-b"), gpu(1))

    with pytest.raises(ConfigError, match=r"divided into 2 instances\n.*MIG-a, MIG-b"):
        place(node(worker(gpus=[0])), divided)

    assert place(node(worker(gpus=["MIG-b"])), divided).of("mixed-0").gpus == ("MIG-b",)


def test_a_worker_without_gpus_is_refused_on_a_node_with_gpus() -> None:
    """It would see, and use, all GPUs of the node."""
    with pytest.raises(ConfigError, match="no GPUs given"):
        place(node(worker(gpus=0)), FOUR)


def test_gpus_requested_on_a_node_without_gpus_are_refused() -> None:
    with pytest.raises(ConfigError, match="this node has none"):
        place(node(worker(gpus=[0])), None)


REQUESTS = st.lists(
    st.one_of(st.integers(0, 4), st.lists(st.integers(0, 7), max_size=4).map(tuple).filter(bool)),
    max_size=5,
)


@settings(deadline=None)  # the machine may be busy
@given(wanted=REQUESTS, count=st.integers(1, 8))
def test_no_device_is_given_twice_and_every_request_is_met_or_reported(
    wanted: list[int | tuple[int, ...]], count: int
) -> None:
    devices = tuple(gpu(index) for index in range(count))
    requests = [GpuRequest(position, f"w{position}", gpus) for position, gpus in enumerate(wanted)]

    allocation = allocate(requests, devices)

    given_out = [device.gpu for got in allocation.given.values() for device in got]
    assert len(set(given_out)) == len(given_out)
    assert {*given_out, *(device.gpu for device in allocation.free)} == {d.gpu for d in devices}
    reported = {finding.path[1] for finding in allocation.findings}
    for request in requests:
        asked = request.gpus if isinstance(request.gpus, int) else len(request.gpus)
        got = allocation.given.get(request.position, ())
        assert (len(got) == asked and asked > 0) != (request.position in reported)


@settings(deadline=None)  # the machine may be busy
@given(wanted=st.lists(st.one_of(st.integers(1, 3), st.just("uuid"), st.just("index")), max_size=5))
def test_the_devices_assumed_from_a_file_are_enough_for_it(wanted: list[int | str]) -> None:
    workers = []
    for position, want in enumerate(wanted):
        gpus: object = {"uuid": [f"GPU-{position}"], "index": [position]}.get(str(want), want)
        workers.append(worker(f"w{position}", gpus=gpus, port=1000 + position))
    config = node(*workers)

    layout = place(config, assume(config))

    assert [len(layout.of(w.name).devices) for w in config.workers] == [
        w.gpu_count for w in config.workers
    ]
