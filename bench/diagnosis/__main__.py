"""`make bench-diagnosis`: injected faults, and their diagnosis from exported series.

python -m bench.diagnosis [--only KIND_OR_CAUSE ...] [--count N] [--seed S] [--jobs J]
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

from bench.diagnosis.generator import draw_scenario, read_scenarios
from bench.diagnosis.play import Played, play
from bench.diagnosis.score import Scored, describe, is_engine_right, said_of, score
from bench.diagnosis.table import finish_bench

from disagg_cluster.host.garbage import rarely_collected

_PROGRESS_EVERY = 25


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.diagnosis", description=__doc__)
    parser.add_argument(
        "--only", action="append", default=[], help="a kind of the scenario file, a cause, clean"
    )
    parser.add_argument("--count", type=int, help="scenarios of each kind")
    parser.add_argument("--seed", type=int, default=0, help="other seeds, other scenarios")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--verbose", action="store_true", help="each round of wrong scenarios")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    return parser.parse_args()


def _play(name: tuple[str, str]) -> Played:
    with rarely_collected():
        return play(draw_scenario(read_scenarios(), *name))


def _names(options: argparse.Namespace) -> Iterator[tuple[str, str]]:
    scenarios = read_scenarios()
    for kind in scenarios.kinds:
        causes = scenarios.cause(kind)
        known = {kind, *causes} if causes else {kind, "clean"}
        if not options.only or known & set(options.only):
            count = scenarios.count(kind) if options.count is None else options.count
            yield from ((kind, f"{options.seed}-{number}") for number in range(count))


def _line(played: Played, scored: Scored, *, verbose: bool) -> str:
    """What is wrong with the diagnosis of a scenario; empty if all is right."""
    scenario, truth, standing = played.scenario, played.truth, scored.standing
    engines = ",".join(sorted(key.engine for key in truth.engines)) or "pool"
    if not truth.causes:
        if not scored.blamed and not scored.undecided:
            return ""
        expected = "clean" if not scenario.truth.causes else f"harmless {scenario.truth.causes[0]}"
    else:
        if scored.cause and scored.engine:
            return ""
        expected = f"{'/'.join(truth.causes)} {engines}"
    said = said_of(scored)
    if standing is not None and standing.findings:
        first = standing.findings[0]
        named = ",".join(sorted(key.engine for key in first.engines)) or "pool"
        right = "" if not truth.causes or is_engine_right(played, first) else " (wrong engine)"
        said = f"{first.cause} {named}{right} {first.cost_seconds:.2f} s at {standing.t_seconds:g}"
    lines = [
        f"{scenario.name}: {expected}, said {said}; cost {played.cost_seconds:.2f} s "
        f"(noise {played.noise_seconds:.2f}), hurts after {played.hurt_seconds:g} s; "
        f"{describe(scenario)}"
    ]
    if verbose:
        lines += [f"    {fault}" for fault in scenario.faults]
        lines += [
            f"    {each.t_seconds:5.0f} {each.outcome} "
            + "; ".join(
                f"{f.cause} {','.join(sorted(k.engine for k in f.engines)) or 'pool'} "
                f"{f.cost_seconds:.2f}s {f.confidence:.2f}"
                for f in each.findings
            )
            + f" ranked {'; '.join(each.ranked)}"
            + (f" missing {each.missing}" if each.missing else "")
            for each in played.rounds
        ]
    return "\n".join(lines) + "\n"


def _progress(done: int, every: int, seconds: float) -> str:
    left_minutes = seconds / done * (every - done) / 60
    return f"{done} of {every} after {seconds / 60:.1f} min, {left_minutes:.0f} min left\n"


def main() -> int:
    """Run all scenarios, and compare the figures with the thresholds."""
    options = _arguments()
    began = time.monotonic()
    names = list(_names(options))
    results: list[tuple[Played, Scored]] = []
    with ProcessPoolExecutor(options.jobs) as executor:
        for played in executor.map(_play, names, chunksize=2):
            scored = score(played)
            results.append((played, scored))
            sys.stderr.write(_line(played, scored, verbose=options.verbose))
            if len(results) % _PROGRESS_EVERY == 0:
                sys.stderr.write(_progress(len(results), len(names), time.monotonic() - began))
            sys.stderr.flush()
    return finish_bench(results, time.monotonic() - began, options)


if __name__ == "__main__":
    sys.exit(main())
