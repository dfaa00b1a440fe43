"""The stub driver as fixtures; a test module asks for them by `pytest_plugins`."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.nvml_stub import NvmlChild, StubDriver, build_stub
from support.nvml_stub.state import new_state, set_defaults


@pytest.fixture(scope="session")
def stub_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the stub driver, compiled once."""
    _need_gcc()
    return build_stub(tmp_path_factory.mktemp("nvml"))


@pytest.fixture(scope="session")
def old_stub_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the stub of an old driver, compiled once."""
    _need_gcc()
    return build_stub(tmp_path_factory.mktemp("nvml_old"), old_driver=True)


@pytest.fixture(scope="session")
def _current(stub_library: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StubDriver]:
    yield from _driver(stub_library, tmp_path_factory)


@pytest.fixture(scope="session")
def _old(old_stub_library: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StubDriver]:
    yield from _driver(old_stub_library, tmp_path_factory)


@pytest.fixture
def stub(_current: StubDriver) -> Iterator[StubDriver]:
    """Eight healthy GPUs under a current driver, not yet opened."""
    yield from _fresh(_current)


@pytest.fixture
def old_stub(_old: StubDriver) -> Iterator[StubDriver]:
    """Eight healthy GPUs under an old driver, not yet opened."""
    yield from _fresh(_old)


def _driver(library: Path, factory: pytest.TempPathFactory) -> Iterator[StubDriver]:
    path = factory.mktemp("nvml_state") / "state"
    state = new_state(path)
    with NvmlChild(library, path) as child:
        yield StubDriver(child, state)


def _fresh(driver: StubDriver) -> Iterator[StubDriver]:
    set_defaults(driver.state)
    yield driver
    driver.child.call("close")


def _need_gcc() -> None:
    if shutil.which("gcc") is None:
        pytest.skip("NOTHING OF NVML IS TESTED: gcc is missing, the stub driver cannot be built")
