"""A sample of `make bench-faults`: what is done to workers, daemons and host costs nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SECONDS = 420.0

# How quickly a state is told depends on what else the machine does: that is for the benchmark.
HELD = {
    "requests_of_untouched_engines_lost",
    "workers_that_stay_dead",
    "orphans",
    "double_starts",
    "counters_that_went_back",
}


@pytest.mark.long
def test_faults_of_every_campaign_lose_no_request_and_leave_no_dead_or_extra_worker(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "faults"
    argv = [sys.executable, "-m", "bench.faults", "--short", "--folder", str(folder)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((".", "tests"))}

    done = subprocess.run(
        argv,
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )

    report = json.loads(folder.with_suffix(".json").read_text(encoding="utf-8"))
    figures = report["figures"]
    assert figures["faults"] >= 7, done.stderr
    assert figures["requests_of_untouched_engines"] > 0, done.stderr
    assert {name: figures[name] for name in HELD} == dict.fromkeys(HELD, 0.0), done.stderr
