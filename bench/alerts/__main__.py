"""Which alerts fire in a week of a healthy fleet: `make bench-alerts`.

promtool evaluates all rules over seven days of a fleet (bench/alerts/week.py) scraped every 15, 30
and 60 s. Bar: no page, and no ticket except for a pool that is full on purpose and on the first
mornings, which have no day before them to compare with.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import click
from bench.alerts.series import Span
from bench.alerts.week import quiet_week

RULES = sorted(Path("alerts/rules").glob("*.yaml"))
REPORT = Path("bench/out/alerts.json")
DAY_SECONDS = 24 * 3600


def fired(span: Span, seed: int, evaluation: str) -> list[str]:
    """Evaluate the rules over the span; return the alerts (or errors) that promtool reports."""
    binary = shutil.which("promtool")
    if binary is None:
        raise SystemExit("no promtool on the PATH: scripts/system-packages prometheus")
    rules = [path.resolve() for path in RULES]
    with tempfile.TemporaryDirectory() as folder:
        week = Path(folder) / "week.json"
        week.write_text(json.dumps(quiet_week(rules, span, seed, evaluation)))
        done = subprocess.run(
            [binary, "test", "rules", str(week)], capture_output=True, text=True, check=False
        )
    output = done.stdout + done.stderr
    return re.findall(r"got: (.*)", output) or ([output] if done.returncode else [])


def main() -> int:
    """Run all scrape intervals; print what fired; 1 if any alert fired that should not."""
    parser = argparse.ArgumentParser(prog="make bench-alerts", description=__doc__)
    parser.add_argument("--days", type=int, default=7)
    parser.add_argument("--scrapes", type=int, nargs="+", default=[15, 30, 60], metavar="SECONDS")
    parser.add_argument("--evaluation", default="2m", help="how often rules are evaluated")
    parser.add_argument("--seed", type=int, default=20261121)
    options = parser.parse_args()
    by_scrape = {}
    for scrape in options.scrapes:
        alerts = fired(Span(options.days, DAY_SECONDS, scrape), options.seed, options.evaluation)
        by_scrape[scrape] = alerts
        click.echo(
            f"{'MISSED' if alerts else 'met   '}  {options.days} days at {scrape} s: nothing fires"
        )
        for line in alerts:
            click.echo(f"        {line}")
    REPORT.parent.mkdir(parents=True, exist_ok=True)
    REPORT.write_text(json.dumps({"days": options.days, "fired": by_scrape}, indent=1) + "\n")
    return int(any(by_scrape.values()))


if __name__ == "__main__":
    sys.exit(main())
