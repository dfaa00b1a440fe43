"""Moves of workers between their roles, under load and under faults: `make bench-faults-control`.

Five parts. *Lies*, in virtual time: engines that answer but do not do their new work; none may be
accepted as switched. *Moves*: two of four stand-ins behind a real vllm-router swap roles repeatedly
while users send requests; what it costs users. *Faults*: a fault is injected at a random moment of
a move; how the move ends, when the state is reported, and how untouched engines are affected.
*Partitions*: one of three nodes is cut off and returns. *Real engines*: moves of real vLLM, and
faults during them. No process outlives the run.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.faults import processes
from bench.faults_control.kills import killed
from bench.faults_control.kinds import DAEMON, HOST_KINDS, KINDS
from bench.faults_control.lies import lied
from bench.faults_control.moves import moved
from bench.faults_control.partitions import cut_off
from bench.faults_control.real_engines import REAL_KINDS, real_faults
from bench.faults_control.table import BARS, figures, markdown
from bench.report import finish

ROUTER = Path(os.environ.get("DISAGG_ROUTER_PYTHON", ".venv-router/bin/python"))
VLLM = Path(os.environ.get("DISAGG_VLLM_PYTHON", ".venv-vllm/bin/python"))
FOLDER = Path("bench/out")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the parts, print and write the figures; 1 if a bar is missed."""
    parser = argparse.ArgumentParser(prog="bench.faults_control", description=__doc__)
    parser.add_argument("--seed", default="1", help="the seed that faults and lies are drawn by")
    parser.add_argument("--moves", type=int, default=100, help="moves under load")
    parser.add_argument("--kills", type=int, default=50, help="kills of the daemon")
    parser.add_argument("--others", type=int, default=3, help="number of each other fault")
    parser.add_argument("--lies", type=int, default=500, help="engines that lie")
    parser.add_argument("--partitions", type=int, default=20, help="nodes cut off")
    parser.add_argument("--real", type=int, default=5, help="moves of real vLLM engines")
    parser.add_argument("--only", action="append", help="only this kind of fault; repeatable")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    options = parser.parse_args(arguments)
    # A daemon that may not write bytecode is compiled at each start, which doubles its start time.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    processes.adopt_orphans()
    processes.end_with_parent()
    began = time.monotonic()
    found: dict[str, Any] = {"lies": lied(options.lies, options.seed)}
    _say(f"lies: {found['lies']}")
    if options.moves:
        found["moves"] = moved(options.moves, ROUTER)
        _say(f"moves: {found['moves']}")
    counts = {kind.name: options.others for kind in (*KINDS, *HOST_KINDS)}
    counts[DAEMON.name] = options.kills
    if options.only:
        counts = {name: count for name, count in counts.items() if name in options.only}
    if any(counts.values()):
        found["faults"] = killed(counts, ROUTER, options.seed)
    if options.partitions:
        found["partitions"] = cut_off(options.partitions, options.seed)
        _say(f"partitions: {found['partitions']}")
    if options.real:
        kinds = [kind for kind in REAL_KINDS if not options.only or kind.name in options.only]
        _say(f"real vLLM: {options.real} moves, then {len(kinds)} faults: some minutes")
        found["real"] = real_faults(options.real, VLLM, ROUTER, options.seed, kinds)
    text = markdown(found)
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / "faults-control.md").write_text(text, encoding="utf-8")
    sys.stderr.write(text)
    return finish(
        FOLDER / "faults-control.json",
        figures(found),
        BARS,
        as_json=options.json,
        seed=options.seed,
        minutes=(time.monotonic() - began) / 60,
        found=_plain(found),
    )


def _plain(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the results as JSON-compatible values."""
    plain: dict[str, Any] = {}
    for part, results in found.items():
        plain[part] = dict(results)
        if "outcomes" in results:
            plain[part]["outcomes"] = [asdict(outcome) for outcome in results["outcomes"]]
    return plain


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


if __name__ == "__main__":
    sys.exit(main())
