"""The basis of the tests with real engines: workers' time stamps, and their node files."""

from __future__ import annotations

import importlib.metadata
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from disagg_cluster.config import NodeConfig
from disagg_cluster.nodefile import from_mapping, parse
from disagg_exporter.model import Role
from support.node_files import HAS_ALL
from support.vllm_nodes import aggregated_node, example_connector_node, nixl_node, truth_file
from support.vllm_pair import (
    TRUTH_FILE_ENVIRONMENT,
    TRUTH_PLUGIN,
    TruthStep,
    read_truth,
    truth_environment,
)


def test_steps_are_read_up_to_the_line_that_is_being_written(tmp_path: Path) -> None:
    path = tmp_path / "truth"
    path.write_text("100 350 50 76 76 0\n400 500 0 3 0 3\n600 7")

    steps = read_truth(path)

    assert steps == [TruthStep(100, 350, 50, 76, 76, 0), TruthStep(400, 500, 0, 3, 0, 3)]
    assert [step.held_ns for step in steps] == [250, 100]


def test_no_file_yet_is_no_steps(tmp_path: Path) -> None:
    assert read_truth(tmp_path / "truth") == []


@pytest.mark.parametrize("line", ["1 2 3\n", "1 2 3 4 5 x\n", "\n"])
def test_a_line_that_is_no_step_is_an_error(tmp_path: Path, line: str) -> None:
    path = tmp_path / "truth"
    path.write_text("100 350 50 76 76 0\n" + line)

    with pytest.raises(ValueError, match=r"truth|invalid literal"):
        read_truth(path)


class Worker:
    """The object that vLLM's wrapper wraps; `step_ns` pass on the clock in each of its calls."""

    rank = 0

    def __init__(self, clock: list[int]) -> None:
        self.clock = clock
        self.output: object = None

    def execute_model(self, scheduler_output: object) -> object:
        self.clock[0] += 100
        return self.output

    def sample_tokens(self, grammar_output: object) -> str:
        self.clock[0] += 30
        return f"sampled {grammar_output}"


@pytest.fixture
def wrapper_class(monkeypatch: pytest.MonkeyPatch) -> Iterator[type]:
    """A stand-in for vLLM's modules with the plugin's folder on the path."""

    class WorkerWrapperBase:
        def __init__(self, worker: Worker) -> None:
            self.worker = worker

        def execute_model(self, scheduler_output: object) -> object:
            return self.worker.execute_model(scheduler_output)

        def __getattr__(self, name: str) -> Any:
            return getattr(self.worker, name)

    def details(scheduler_output: SimpleNamespace) -> SimpleNamespace:
        return SimpleNamespace(
            num_ctx_tokens=scheduler_output.context,
            num_generation_tokens=scheduler_output.total_num_scheduled_tokens
            - scheduler_output.context,
        )

    fakes = {"vllm.v1.worker.worker_base": {"WorkerWrapperBase": WorkerWrapperBase}}
    fakes["vllm.v1.utils"] = {"compute_iteration_details": details}
    for name in ("vllm", "vllm.v1", "vllm.v1.worker"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    for name, content in fakes.items():
        module = types.ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.syspath_prepend(str(TRUTH_PLUGIN))
    yield WorkerWrapperBase
    sys.modules.pop("disagg_truth", None)


def _plugin() -> Any:
    [entry] = [
        entry
        for entry in importlib.metadata.entry_points(group="vllm.general_plugins")
        if entry.name == "disagg_truth"
    ]
    return entry


def test_the_plugin_records_when_the_worker_executes_a_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrapper_class: type
) -> None:
    clock = [1000]
    path = tmp_path / "truth"
    for name, value in truth_environment(path).items():
        monkeypatch.setenv(name, value)
    install = _plugin().load()
    install(clock_ns=lambda: clock[0])
    install()  # vLLM may load a plugin more than once
    worker = Worker(clock)
    wrapper = wrapper_class(worker)

    wrapper.execute_model(SimpleNamespace(total_num_scheduled_tokens=76, context=76))
    clock[0] += 20
    assert wrapper.sample_tokens("g") == "sampled g"
    wrapper.execute_model(SimpleNamespace(total_num_scheduled_tokens=0, context=0))
    worker.output = "done"
    wrapper.execute_model(SimpleNamespace(total_num_scheduled_tokens=3, context=1))

    assert read_truth(path) == [
        TruthStep(1000, 1150, 20, 76, 76, 0),
        TruthStep(1250, 1350, 0, 3, 1, 2),
    ]


def test_only_the_first_rank_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrapper_class: type
) -> None:
    monkeypatch.setenv(TRUTH_FILE_ENVIRONMENT, str(tmp_path / "truth"))
    _plugin().load()()
    worker = Worker([0])
    worker.rank = 1
    wrapper = wrapper_class(worker)

    wrapper.execute_model(SimpleNamespace(total_num_scheduled_tokens=1, context=1))

    assert wrapper.sample_tokens("g") == "sampled g"
    assert not (tmp_path / "truth").exists()


PAIR = {"metrics_port": 9847, "ports": (8100, 8200)}


def _configured(mapping: dict[str, Any]) -> NodeConfig:
    return from_mapping(yaml.safe_load(yaml.safe_dump(mapping)), "test", HAS_ALL)


def test_the_nixl_pair_is_a_node_file_with_its_own_side_channels(tmp_path: Path) -> None:
    paths = {"python": Path("/venv/bin/python"), "model": Path("/models/tiny"), "run_dir": tmp_path}

    config = _configured(nixl_node(**paths, **PAIR, side_channel_ports=(5600, 5601)))

    prefill, decode = config.workers
    assert (prefill.role, decode.role) == (Role.PREFILL, Role.DECODE)
    assert (prefill.port, decode.port) == (8100, 8200)
    assert (prefill.kv_transfer.role, decode.kv_transfer.role) == ("kv_producer", "kv_consumer")
    assert [worker.kv_transfer.side_channel_port for worker in config.workers] == [5600, 5601]
    assert {worker.env["UCX_TLS"] for worker in config.workers} == {"tcp,self"}
    stamped = [worker.env[TRUTH_FILE_ENVIRONMENT] for worker in config.workers]
    assert stamped == [str(truth_file(tmp_path, name)) for name in ("prefill-0", "decode-0")]


def test_the_example_connector_pair_shares_one_folder(tmp_path: Path) -> None:
    paths = {"python": Path("/venv/bin/python"), "model": Path("/models/tiny"), "run_dir": tmp_path}

    config = _configured(example_connector_node(**paths, **PAIR))

    assert {worker.kv_transfer.role for worker in config.workers} == {"kv_both"}
    assert {
        worker.kv_transfer.extra_config["shared_storage_path"] for worker in config.workers
    } == {str(tmp_path / "kv")}
    assert all("UCX_TLS" not in worker.env for worker in config.workers)


def test_the_aggregated_engine_runs_as_the_pairs_do(tmp_path: Path) -> None:
    paths = {"python": Path("/venv/bin/python"), "model": Path("/models/tiny"), "run_dir": tmp_path}

    [mixed] = _configured(aggregated_node(**paths, metrics_port=9847, port=8300)).workers
    pair = _configured(example_connector_node(**paths, **PAIR)).workers

    assert (mixed.role, mixed.kv_transfer) == (Role.MIXED, None)
    assert all(mixed.args == worker.args for worker in pair)


def test_the_shipped_cpu_pair_runs_with_the_arguments_that_are_tested() -> None:
    path = Path(__file__).parents[5] / "examples" / "vllm-cpu-pair.yaml"

    config = parse(path.read_text(), str(path), HAS_ALL)

    tested = _configured(
        nixl_node(
            python=Path("../.venv-vllm/bin/python"),
            model=Path("../.run/tiny-model"),
            run_dir=Path("../.run/vllm-cpu-pair"),
            **PAIR,
            side_channel_ports=(5600, 5601),
        )
    )
    assert config.devices is tested.devices
    for shown, proven in zip(config.workers, tested.workers, strict=True):
        assert " ".join(shown.args).replace("=", " ") == " ".join(proven.args)
        assert shown.kv_transfer == proven.kv_transfer
        assert shown.model == proven.model
        left_out = {TRUTH_FILE_ENVIRONMENT, "PYTHONPATH", "VLLM_NIXL_SIDE_CHANNEL_HOST"}
        assert shown.env == {k: v for k, v in proven.env.items() if k not in left_out}


def test_the_plugin_wraps_nothing_without_a_configured_file(
    monkeypatch: pytest.MonkeyPatch, wrapper_class: type
) -> None:
    monkeypatch.delenv(TRUTH_FILE_ENVIRONMENT, raising=False)
    before = wrapper_class.execute_model  # type: ignore[attr-defined]

    _plugin().load()()

    assert wrapper_class.execute_model is before  # type: ignore[attr-defined]
