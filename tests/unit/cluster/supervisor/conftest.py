"""What tests of supervision share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from disagg_cluster.config.restart_policy import RestartPolicy
from disagg_cluster.supervisor.worker_spec import WorkerSpec
from support.children import LinePipe
from support.supervisors import QUICK, tiny_spec


@pytest.fixture
def pipe(tmp_path: Path) -> Iterator[LinePipe]:
    pipe = LinePipe(tmp_path)
    yield pipe
    pipe.close()


@pytest.fixture
def spec(tmp_path: Path) -> Callable[..., WorkerSpec]:
    """A spec that runs a script, or the test server if there is none."""

    def spec(
        script: str | None = None, *arguments: str, name: str = "w", policy: RestartPolicy = QUICK
    ) -> WorkerSpec:
        return tiny_spec(tmp_path, script, *arguments, name=name, policy=policy)

    return spec
