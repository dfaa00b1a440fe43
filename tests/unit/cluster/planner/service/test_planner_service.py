from __future__ import annotations

import os
import signal

from disagg_cluster.planner.service.planner_service import PlannerService
from disagg_cluster.planner.settings.planner_file import PlannerConfig
from disagg_exporter.http.listen import ListenAddress
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
