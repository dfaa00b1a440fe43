"""Plays one campaign: draws faults, injects them, and records what was observed.

Run as a program, in a separate process, so that the processes it leaves are its own children:
`python -m bench.faults.play NAME SEED ROUNDS RESULT`.
"""

from __future__ import annotations

import json
import random
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from bench.faults import coverage, processes
from bench.faults.campaigns import COVERAGE, Campaign, named
from bench.faults.fault import Fault, Observed, judge
from bench.faults.scene import STATES, UNTOUCHED, NeverReadyError, Scene, Victim, is_ready, scene
from bench.faults.watch import Samples

_MORE_PATIENCE_SECONDS = 15.0
_DEAD_AFTER_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """One injected fault, what was observed, and what is wrong with that."""

    fault: str
    round: int
    observed: Observed
    bad: tuple[str, ...]


def draw(faults: Sequence[Fault], rounds: int, seed: str, at_once: int) -> list[tuple[Fault, ...]]:
    """Draw the faults of each round; every fault comes as early as its weight allows."""
    chance = random.Random(seed)
    bag: list[Fault] = []
    drawn = []
    for _ in range(rounds):
        while len(bag) < at_once:
            more = [fault for fault in faults for _ in range(fault.weight)]
            chance.shuffle(more)
            # One of each kind first, so that a short run includes them all.
            bag += more if drawn or bag else chance.sample(faults, len(faults)) + more
        drawn.append(tuple(bag.pop(0) for _ in range(at_once)))
    return drawn


def play(campaign: Campaign, seed: str, rounds: int) -> list[Outcome]:
    """Play all rounds; a node that did not recover is given up and replaced."""
    at_once = campaign.victims if campaign.at_once else 1
    left = list(enumerate(draw(campaign.faults, rounds, seed, at_once)))
    outcomes: list[Outcome] = []
    while left:
        try:
            with scene(f"{seed}-{len(left)}", campaign.victims, campaign) as here:
                begun = len(outcomes)
                while left and not _gave_up(outcomes[begun:]):
                    number, faults = left.pop(0)
                    outcomes += play_round(here, faults, number)
                    say(f"{campaign.name}: round {number + 1} of {rounds}", outcomes)
                if not left:
                    outcomes.append(ended(here, rounds))
        except NeverReadyError as error:
            sys.stderr.write(f"{campaign.name}: the node does not start\n{error}\n")
            seen = Observed(error="the node does not start")
            while left:
                number, faults = left.pop(0)
                outcomes += (Outcome(f.name, number, seen, judge(f.expected, seen)) for f in faults)
    return outcomes


def _gave_up(last: Sequence[Outcome]) -> bool:
    return any("stays dead" in why for outcome in last for why in outcome.bad)


def play_round(here: Scene, faults: Sequence[Fault], number: int) -> list[Outcome]:
    """Inject a fault into each victim at once; effects on others are recorded with the first."""
    victims = here.chance.sample(here.victims, len(faults))
    seen: dict[int, Observed] = {}
    lost, answered = len(here.clients.failures), here.clients.completed
    back, doubled, pids = set(here.watch.back), set(here.watch.doubled), here.untouched_pids()

    def one(index: int) -> None:
        try:
            seen[index] = observe(here, faults[index], victims[index])
        except Exception:  # noqa: BLE001 - a fault that cannot be judged counts as bad
            seen[index] = Observed(error=traceback.format_exc(limit=-2).replace("\n", " | "))

    threads = [threading.Thread(target=one, args=(index,)) for index in range(len(faults))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for fault in faults:
        if fault.expected.resets:
            here.watch.forget(fault.expected.resets)
    now = here.untouched_pids()
    seen[0] = replace(
        seen[0],
        lost=len(here.clients.failures) - lost,
        answered=here.clients.completed - answered,
        moved=tuple(name for name in UNTOUCHED if now[name] != pids[name]),
        back=tuple(sorted(here.watch.back - back)),
        doubled=tuple(sorted(here.watch.doubled - doubled)),
    )
    return [
        Outcome(fault.name, number, seen[index], judge(fault.expected, seen[index]))
        for index, fault in enumerate(faults)
    ]


def observe(here: Scene, fault: Fault, victim: Victim) -> Observed:
    """Inject one fault into one victim and observe the outcome."""
    before, pid, expected = here.watch.page, victim.pid, fault.expected
    helpers = set(processes.helpers_of(victim.port))
    here.rest(here.chance.random())
    fault.inject(here, victim)
    began = time.monotonic()
    helpers |= set(processes.helpers_of(victim.port))
    reported_seconds = None
    if expected.state:
        reports = STATES[expected.state]
        patience = expected.reported_seconds + _MORE_PATIENCE_SECONDS
        reported_seconds = here.watch.until(
            lambda page: reports(before, page, victim.name), patience
        )
    here.rest(max(fault.lasts_seconds - (time.monotonic() - began), 0.0))
    if fault.heal is not None:
        fault.heal(here, victim)

    def recovered(page: Samples) -> bool:
        ready = all(is_ready(page, name) for name in (victim.name, *UNTOUCHED))
        return ready and victim.pid is not None and (not expected.dies or victim.pid != pid)

    patience = max(_DEAD_AFTER_SECONDS, expected.recovered_seconds)
    recovered_seconds = here.watch.until(recovered, patience)
    here.rest(0.5)
    alive = helpers & set(processes.helpers_of(victim.port))
    processes.end_all(alive)
    return Observed(
        reported_seconds=reported_seconds,
        recovered_seconds=recovered_seconds,
        same_process=victim.pid == pid,
        left=tuple(f"helper {helper}" for helper in alive),
    )


def ended(here: Scene, rounds: int) -> Outcome:
    """End the node as a user does, and observe what is left of it."""
    code, _ = here.node.stop("--workers")
    here.rest(0.5)
    left = tuple(
        f"{name}: {pid}" for name, port in here.ports.items() for pid in processes.engines_at(port)
    )
    error = "" if code == 0 else f"`stop --workers` exits {code}"
    observed = Observed(recovered_seconds=0.0, left=left, error=error)
    return Outcome("the end", rounds, observed, judge_end(observed))


def judge_end(observed: Observed) -> tuple[str, ...]:
    """Return what is wrong with the end of a node."""
    bad = [f"orphan {name}" for name in observed.left]
    return tuple([*bad, observed.error] if observed.error else bad)


def say(text: str, outcomes: Sequence[Outcome]) -> None:
    """Print a line of progress, and each bad outcome once."""
    bad = sum(bool(outcome.bad) for outcome in outcomes)
    sys.stderr.write(f"{text}: {len(outcomes)} faults, {bad} bad\n")
    for outcome in outcomes[-3:]:
        for why in outcome.bad if outcome.round == outcomes[-1].round else ():
            sys.stderr.write(f"    {outcome.fault}: {why}\n")


def main() -> int:
    """Play one campaign and write its result."""
    name, seed, rounds, result = sys.argv[1:]
    processes.end_with_parent()
    campaign, began = named(name, seed), time.monotonic()
    report: dict[str, Any] = {"campaign": name, "seed": seed, "rounds": int(rounds)}
    if lacks := campaign.lacks():
        report |= {"lacks": lacks, "outcomes": []}
    elif name == COVERAGE:
        report |= coverage.measure(seed, int(rounds))
    else:
        outcomes = play(campaign, f"{seed}-{name}", int(rounds))
        report["outcomes"] = [asdict(outcome) for outcome in outcomes]
    report["seconds"] = time.monotonic() - began
    path = Path(result)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    part.rename(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
