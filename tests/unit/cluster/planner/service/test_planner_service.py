from __future__ import annotations

import os
import signal
import socket

import pytest

from disagg_cluster.planner.service.planner_service import PlannerService
from disagg_cluster.planner.settings.planner_file import PlannerConfig
from disagg_exporter.http.listen import ListenAddress, ListenError
from support.children import free_port


def test_a_signal_during_startup_ends_the_planner() -> None:
    """Even before the first round it ends cleanly and restores the handlers."""
    config = PlannerConfig.model_validate({"listen": {"metrics": f"127.0.0.1:{free_port()}"}})
    before = signal.getsignal(signal.SIGTERM)
    reached = []

    def serving(address: ListenAddress) -> None:
        reached.append(address)
        os.kill(os.getpid(), signal.SIGTERM)

    PlannerService(config).run(serving)

    assert len(reached) == 1
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_port_that_is_taken_is_to_be_changed_in_the_planner_file() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        config = PlannerConfig.model_validate({"listen": {"metrics": listen}})

        with pytest.raises(ListenError, match=r"\(`listen: metrics:` in the planner file\)$"):
            PlannerService(config).run(lambda _address: None)
