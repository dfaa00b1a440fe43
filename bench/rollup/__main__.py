"""The cost of a cluster's ratio at 8 to 8,192 GPUs: `make bench-rollup`.

A real Prometheus holds what it would have scraped from 1 to 1,024 nodes (our own page once for
every node), and the results of our recording rules (evaluated by promtool). Queried in turns, so
that the machine is the same for all: `vector(1)`, which costs nothing; the cluster's ratio from its
rule; the same ratio from the series of single GPUs. Bars: the rule's ratio takes at most 3 × the
time of `vector(1)` at every size and does not grow; from single GPUs it takes at least 100 × as
long at 8,192 GPUs; the rules cost Prometheus at most a fifth of the CPU of rules over single GPUs.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path

import click
import yaml
from bench.rollup.cluster import GPUS_PER_NODE, SCRAPE_SECONDS, SCRAPES, write_history
from bench.rollup.server import TICK_SECONDS, Prometheus, promtool, running
from bench.rollup.totals import NODES, cost_ms, demo_page

SIZES_GPUS = (8, 128, 1024, 8192)
TURNS = 200
RULE_TURNS = 50
RULES = Path("alerts/rules/disagg-recording.yaml")
REPORT = Path("bench/out/rollup.json")
RECORDED_BAR, RAW_BAR, RULE_CPU_BAR, TOTAL_BAR = 3.0, 100.0, 5.0, 1.3

NOTHING = "vector(1)"
# The rules between the nodes' sums and the cluster's ratio.
BY_NODE = "node_role_model_namespace_gpu:disagg_phase_gpu_seconds:rate5m"
COMMITTED = "node:disagg_committed:ratio_rate5m"
BY_OWNER = "cluster_role_model_namespace_gpu:disagg_phase_gpu_seconds:rate5m"
BY_POOL = "cluster_role_model_gpu:disagg_phase_gpu_seconds:rate5m"
BY_PHASE = "cluster:disagg_phase_gpu_seconds:rate5m"
RECORDED = "cluster:disagg_prefill_decode_ratio:ratio_rate5m"
RAW = (
    'sum by (cluster) (rate(disagg_gpu_phase_seconds_total{phase="prefill"}[5m]))'
    ' / sum by (cluster) (rate(disagg_gpu_phase_seconds_total{phase="decode"}[5m]))'
)
# The rule that reads raw series, from the nodes' sums and from single GPUs. Both keep the node, and
# only their rows are counted: writing a row for each node as JSON, which no rule does, would double
# the cost.
RULE_FROM_GPUS = "sum by (cluster, node, role, phase) (rate(disagg_gpu_phase_seconds_total[5m]))"


def measure(gpus: int, folder: Path) -> dict[str, float]:
    """Build one cluster's history and ask for its ratio in three ways."""
    data = folder / "data"
    # Whole hours ago, as blocks are cut at even hours, and a day-old query reads one block.
    start = (int(time.time()) // 7200 - 2) * 7200
    end = start + (SCRAPES - 1) * SCRAPE_SECONDS
    history = folder / "history.om"
    with history.open("w") as out:
        series = write_history(out, gpus // GPUS_PER_NODE, start)
    promtool("tsdb", "create-blocks-from", "openmetrics", "--quiet", str(history), str(data))
    history.unlink()
    # promtool does not read results of the same run, so each rule is evaluated separately.
    for name in (BY_NODE, COMMITTED, BY_OWNER, BY_POOL, BY_PHASE, RECORDED):
        rule = folder / "rule.yaml"
        rule.write_text(yaml.safe_dump({"groups": [{"name": "one", "rules": [_rule(name)]}]}))
        with running(data) as server:
            promtool(
                *("tsdb", "create-blocks-from", "rules", f"--start={start}", f"--end={end}"),
                *(f"--url=http://127.0.0.1:{server.port}", f"--output-dir={data}"),
                *("--eval-interval=30s", str(rule)),
            )
    with running(data) as server:
        return {"gpus": gpus, "series": series, **_ask(server, end)}


def _ask(server: Prometheus, at_seconds: int) -> dict[str, float]:
    ratios = {}
    for expression in (RECORDED, RAW):
        _, result = server.ask(expression, at_seconds)
        if len(result) != 1:
            raise SystemExit(f"{expression}: {len(result)} results instead of one")
        ratios[expression] = float(result[0]["value"][1])  # type: ignore[index] # as Prometheus writes an instant: [time, text]
    if abs(ratios[RECORDED] - ratios[RAW]) > 0.02 * ratios[RAW]:
        raise SystemExit(f"the ratio is {ratios[RECORDED]} by the rule, {ratios[RAW]} by the GPUs")
    times: dict[str, list[float]] = {NOTHING: [], RECORDED: [], RAW: []}
    for _ in range(TURNS):
        for expression, taken in times.items():
            taken.append(server.ask(expression, at_seconds)[0])
    medians = {expression: statistics.median(taken) for expression, taken in times.items()}
    cpu = {}
    from_nodes = _rule(BY_NODE)["expr"]
    for expression in (from_nodes, RULE_FROM_GPUS):
        before = server.cpu_seconds()
        for _ in range(RULE_TURNS):
            server.ask(f"count({expression})", at_seconds)
        cpu[expression] = max(server.cpu_seconds() - before, TICK_SECONDS) / RULE_TURNS
    return {
        "nothing_ms": medians[NOTHING] * 1e3,
        "recorded_ms": medians[RECORDED] * 1e3,
        "raw_ms": medians[RAW] * 1e3,
        "recorded_by_nothing": medians[RECORDED] / medians[NOTHING],
        "raw_by_recorded": medians[RAW] / medians[RECORDED],
        "rule_cpu_ms": cpu[from_nodes] * 1e3,
        "gpu_rule_cpu_ms": cpu[RULE_FROM_GPUS] * 1e3,
        "rule_cpu_gain": cpu[RULE_FROM_GPUS] / cpu[from_nodes],
    }


def _rule(name: str) -> dict[str, str]:
    """Return one of our recording rules."""
    groups = yaml.safe_load(RULES.read_text())["groups"]
    rules = (rule for group in groups for rule in group["rules"])
    return next(rule for rule in rules if rule.get("record") == name)


def verdicts(rows: list[dict[str, float]]) -> list[tuple[str, float, str, bool]]:
    """Compare the rows with the bars: (what, value, bar, met)."""
    worst = max(row["recorded_by_nothing"] for row in rows)
    growth = rows[-1]["recorded_by_nothing"] / rows[0]["recorded_by_nothing"]
    raw, gain = rows[-1]["raw_by_recorded"], rows[-1]["rule_cpu_gain"]
    return [
        ("ratio from its rule ÷ vector(1), worst size", worst, f"≤ {RECORDED_BAR:g}", worst <= 3),
        ("the same, largest ÷ smallest cluster", growth, "flat: ≤ 1.5", growth <= 1.5),
        ("ratio from single GPUs ÷ from its rule", raw, f"≥ {RAW_BAR:g}", raw >= RAW_BAR),
        ("rule CPU, single GPUs ÷ nodes", gain, f"≥ {RULE_CPU_BAR:g}", gain >= RULE_CPU_BAR),
    ]


def total_verdicts(totals: dict[str, float]) -> list[tuple[str, float, str, bool]]:
    """Compare the cost of all rules with that of earlier rules, if given."""
    if "before" not in totals:
        return []
    growth = totals["now"] / totals["before"]
    return [("CPU of all rules ÷ before", growth, f"≤ {TOTAL_BAR:g}", growth <= TOTAL_BAR)]


def main() -> int:
    """Run all sizes; print a table; 1 if a bar is missed."""
    parser = argparse.ArgumentParser(prog="make bench-rollup", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument(
        "--before", type=Path, metavar="DIR", help="other rules, to compare their total cost with"
    )
    parser.add_argument("--gpus", type=int, nargs="+", default=SIZES_GPUS, metavar="N")
    options = parser.parse_args()
    rows = []
    for gpus in options.gpus:
        click.echo(f"{gpus} GPUs …", err=True)
        with tempfile.TemporaryDirectory() as folder:
            rows.append(measure(gpus, Path(folder)))
    folders = {"now": RULES.parent, **({"before": options.before} if options.before else {})}
    click.echo(f"all rules at {NODES} nodes: {', '.join(folders)} …", err=True)
    totals = cost_ms(demo_page(), folders)
    bars = [*verdicts(rows), *total_verdicts(totals)]
    report = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "rows": rows,
        "all_rules_ms": totals,
        "bars": [dict(zip(("what", "value", "bar", "met"), bar, strict=True)) for bar in bars],
    }
    REPORT.parent.mkdir(parents=True, exist_ok=True)
    REPORT.write_text(json.dumps(report, indent=1) + "\n")
    if options.json:
        click.echo(json.dumps(report, indent=1))
    else:
        _show(rows, bars)
        for name, spent_ms in totals.items():
            click.echo(f"a round of all rules at {NODES} nodes, {name}: {spent_ms:.0f} ms of CPU")
    return 0 if all(met for *_, met in bars) else 1


def _show(rows: list[dict[str, float]], bars: list[tuple[str, float, str, bool]]) -> None:
    head = "  GPUs    series  vector(1)   rule    GPUs  GPUs÷rule   rule CPU  GPU-rule CPU"
    click.echo(f"{head}   [ms]")
    for r in rows:
        click.echo(
            f"{r['gpus']:6.0f} {r['series']:9.0f} {r['nothing_ms']:10.2f} {r['recorded_ms']:6.2f}"
            f" {r['raw_ms']:7.1f} {r['raw_by_recorded']:10.0f} {r['rule_cpu_ms']:10.2f}"
            f" {r['gpu_rule_cpu_ms']:13.1f}"
        )
    for what, value, bar, met in bars:
        click.echo(f"{'met   ' if met else 'MISSED'}  {what}: {value:.2f} ({bar})")


if __name__ == "__main__":
    sys.exit(main())
