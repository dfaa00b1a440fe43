"""Faults by the hundred against real daemons: `make bench-faults`.

Stand-in engines under real daemons, with real clients on engines that no fault targets. Campaign by
campaign, faults are drawn by a seed and injected into workers, daemons, the run folder, the journal
and the host's resources; the outcome of each is judged. One campaign kills the daemon every 11 s
and compares the counters with the wall and the engines' own totals.

Every campaign runs in a separate process, two at a time, and writes its result to
`bench/out/faults/`; `--resume` reuses existing results of the same seed. Nothing that a campaign
has started outlives it.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bench.faults.campaigns import BY_NAME, CAMPAIGNS, Campaign, shortened
from bench.faults.table import BARS, COVERAGE_BARS, figures, markdown
from bench.report import finish

FOLDER = Path("bench/out/faults")
_CAMPAIGN_SECONDS = 40 * 60.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the campaigns, print and write the table; 1 if a bar is missed."""
    parser = argparse.ArgumentParser(prog="bench.faults", description=__doc__)
    parser.add_argument("--seed", default="1", help="the seed that faults are drawn by")
    parser.add_argument(
        "--campaign", action="append", choices=sorted(BY_NAME), help="only this one; repeatable"
    )
    parser.add_argument("--rounds", type=int, help="draws per campaign; default: its own number")
    parser.add_argument("--resume", action="store_true", help="keep results of the same seed")
    parser.add_argument("--jobs", type=int, default=2, help="campaigns at a time")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--short", action="store_true", help="a sample of each, within a minute")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the results go")
    options = parser.parse_args(arguments)
    chosen = [c for c in CAMPAIGNS if not options.campaign or c.name in options.campaign]
    if options.short:
        chosen = [shortened(options.seed)]
    folder: Path = options.folder
    folder.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    with ThreadPoolExecutor(options.jobs) as jobs:
        made = [jobs.submit(run, campaign, options) for campaign in chosen]
        reports = [each.result() for each in made]
    text = markdown(reports)
    folder.with_suffix(".md").write_text(text, encoding="utf-8")
    found = figures(reports)
    bars = BARS | {bar: most for bar, most in COVERAGE_BARS.items() if bar in found}
    sys.stderr.write(text)
    return finish(
        folder.with_suffix(".json"),
        found,
        bars,
        as_json=options.json,
        seed=options.seed,
        minutes=(time.monotonic() - began) / 60,
        campaigns=[campaign.name for campaign in chosen],
        not_run={r["campaign"]: r["lacks"] for r in reports if r.get("lacks")},
    )


def run(campaign: Campaign, options: argparse.Namespace) -> dict[str, Any]:
    """Run one campaign in a separate process, or reuse its existing result."""
    result: Path = options.folder / f"{campaign.name.replace(' ', '-')}.json"
    seed, rounds = options.seed, options.rounds or campaign.rounds
    if options.resume and result.exists():
        report: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
        if (report["seed"], report["rounds"]) == (seed, rounds):
            return report
    result.unlink(missing_ok=True)
    argv = [
        sys.executable,
        "-m",
        "bench.faults.play",
        campaign.name,
        seed,
        str(rounds),
        str(result),
    ]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, (".", "tests", os.environ.get("PYTHONPATH")))),
    }
    process = subprocess.Popen(argv, env=environment, start_new_session=True)
    try:
        process.wait(_CAMPAIGN_SECONDS)
    except BaseException:
        # It ends all processes that it started.
        process.send_signal(signal.SIGINT)
        process.wait()
        raise
    if not result.exists():
        raise SystemExit(f"campaign {campaign.name} ended without a result ({process.returncode})")
    made: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
    return made


if __name__ == "__main__":
    sys.exit(main())
