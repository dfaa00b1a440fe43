"""Fixtures of the tests with real engines: environment, model, a pair under a daemon."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.children import free_port
from support.running_node import prometheus_beside, running_node
from support.vllm_nodes import SLOW_MODEL, WIDE_MODEL, example_connector_node
from support.vllm_session import RealPair, Say, make_model

PYTHON_ENVIRONMENT = "DISAGG_VLLM_PYTHON"


@pytest.fixture
def say(capfd: pytest.CaptureFixture[str]) -> Say:
    """Print a measured figure past the capture: it belongs into CI's output."""

    def write(text: str) -> None:
        with capfd.disabled():
            sys.stdout.write(f"\n    {text}")

    return write


@pytest.fixture(scope="session")
def vllm_python() -> Path:
    """The interpreter of an environment with vLLM, from DISAGG_VLLM_PYTHON."""
    named = os.environ.get(PYTHON_ENVIRONMENT, "")
    if not named or not Path(named).exists():
        pytest.skip(
            f"NO REAL vLLM: {PYTHON_ENVIRONMENT}={named!r} is no interpreter; `make test` sets it. "
            "If the environment could not be made, its message says what to set."
        )
    return Path(named).absolute()


@pytest.fixture(scope="session")
def short_folder() -> Iterator[Path]:
    """A folder with a short path: Unix sockets allow 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="dn-") as name:
        yield Path(name)


@pytest.fixture
def alerting_programs() -> None:
    """Skip where there is no Prometheus or no Alertmanager."""
    for program in ("prometheus", "prometheus-alertmanager"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed: apt-get install {program}")


@pytest.fixture(scope="session")
def slow_model(vllm_python: Path, short_folder: Path) -> Path:
    """A random model whose steps take long enough to be measured well."""
    return make_model(vllm_python, short_folder / "slow-model", SLOW_MODEL)


@pytest.fixture(scope="session")
def wide_model(vllm_python: Path, short_folder: Path) -> Path:
    """A random model whose steps take as long each time, as far as the machine lets them."""
    return make_model(vllm_python, short_folder / "wide-model", WIDE_MODEL)


@pytest.fixture(scope="session")
def example_pair(vllm_python: Path, slow_model: Path, short_folder: Path) -> Iterator[RealPair]:
    """A pair that hands KV over through files: it does not spin while it rests."""
    run_dir = short_folder / "pair"
    run_dir.mkdir()
    node_file = example_connector_node(
        python=vllm_python,
        model=slow_model,
        run_dir=run_dir,
        metrics_port=free_port(),
        ports=(free_port(), free_port()),
    )
    with running_node(node_file, run_dir) as node:
        node.wait_ready()
        with prometheus_beside(node, run_dir) as url:
            yield RealPair(node, url, run_dir)
