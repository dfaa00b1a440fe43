from __future__ import annotations

import os
import signal

from disagg_cluster.planner.service.planner_service import PlannerService
from disagg_cluster.planner.settings.planner_file import PlannerConfig
from disagg_exporter.http.listen import ListenAddress
from support.children import free_port


def test_a_signal_while_it_begins_to_serve_ends_it() -> None:
    """Before its first round, too, it ends as it should, and puts the handlers back."""
    config = PlannerConfig.model_validate({"listen": {"metrics": f"127.0.0.1:{free_port()}"}})
    before = signal.getsignal(signal.SIGTERM)
    reached = []

    def serving(address: ListenAddress) -> None:
        reached.append(address)
        os.kill(os.getpid(), signal.SIGTERM)

    PlannerService(config).run(serving)

    assert len(reached) == 1
    assert signal.getsignal(signal.SIGTERM) is before
