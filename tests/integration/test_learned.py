"""What was learned of engines outlives the daemon that learned it."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

from disagg_exporter.errors import DisaggError
from support.mixed_clients import MixedClients
from support.running_node import Page, RunningNode
from support.two_planes import MODEL, node, standin_node, wait_until

# What takes a few seconds, with room for what else runs on the same cores.
BACK_SECONDS = 20.0
CAPACITY = (
    "disagg_engine_capacity_used_ratio",
    "disagg_engine_prefill_knee_tokens_per_second",
    "disagg_node_capacity_used_gpus",
)


def page_of(daemon: RunningNode) -> Page | None:
    try:
        return daemon.page()
    except DisaggError:
        return None


def known(page: Page | None) -> bool:
    """Whether mixed steps are divided by the cost model, and capacity is shown."""
    return (
        page is not None
        and page.sum("disagg_attribution_info", engine="mixed-0", split="model") == 1
        and all(page.samples.get(name) for name in CAPACITY)
    )


def fitted_steps(daemon: RunningNode) -> float:
    return daemon.page().sum("disagg_attribution_fitted_steps")


def steps_kept(run_dir: Path) -> int:
    """How many steps the file says that mixed steps are divided by, once they are."""
    try:
        told = json.loads((run_dir / "learned.json").read_text())
    except FileNotFoundError:
        return 0
    return max([sum(e["learned"]["costs"][0][1]["steps"]) for e in told["engines"]], default=0)


def test_after_a_killed_daemon_learned_split_and_capacity_return_within_seconds(
    tmp_path: Path,
) -> None:
    node_file = standin_node(tmp_path)
    quick = {"step_base_seconds": 0.004, "prefill_token_seconds": 5e-6}
    mixed = {"name": "mixed-0", "role": "mixed", "args": ["--costs", json.dumps(quick)]}
    node_file["workers"] = [node_file["workers"][0] | mixed]
    with node(node_file, tmp_path) as planes:
        planes.daemon.wait_ready()
        url = planes.daemon.url("mixed-0")
        with MixedClients(url, MODEL).running() as clients:
            wait_until("costs and limits to be known", lambda: known(page_of(planes.daemon)))
            fitted = fitted_steps(planes.daemon)
            wait_until("them to be kept", lambda: steps_kept(planes.run_dir) >= fitted)
            knee = planes.daemon.page().sum(CAPACITY[1])

            planes.end_daemon(signal.SIGKILL)
            successor = planes.next_daemon()
            wait_until("a page", lambda: page_of(successor) is not None)
            began = time.monotonic()
            wait_until("both to be back", lambda: known(page_of(successor)))
            took = time.monotonic() - began
            kept = fitted_steps(successor)
            wait_until("more to be learned", lambda: fitted_steps(successor) > kept)

        page = successor.page()
        assert clients.failures == []
        assert kept >= fitted
        assert abs(page.sum(CAPACITY[1]) / knee - 1) < 0.2
        assert page.sum("disagg_collector_success", collector="learned") == 1
        assert "mixed-0: goes on with what" in successor.log()
        assert took < BACK_SECONDS, took
