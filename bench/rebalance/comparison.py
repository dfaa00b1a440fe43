"""A load under all rules, and the figures compared with bars."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from bench.plan.days import Day
from bench.plan.profile import Profile, worker_options
from bench.plan.replay import replay
from bench.plan.rules import TARGETS, Engines, FixedRatio, Rule, Static, TokenVelocity
from bench.rebalance.loads import ENGINES, LoadKind, kind_of, make_load
from bench.rebalance.mixed_loads import MixedKind, make_mixed_load, mixed_kind_of
from bench.rebalance.rules import HALF, Acting, FixedRatioOverAll, Spread, VelocityOverAll

from disagg_cluster.planner.rebalance.limits import RebalanceLimits

ACT, HETERO, TOKENS = "act", "HeteroScale's rule", "TokenScale's velocity"
BEGUN = "best static, begun at 4+4"
LIMITS = RebalanceLimits()
BARS = {
    "minutes over / static 4+4's": 0.6,
    "minutes over / best of HeteroScale's": 1.0,
    "minutes over / best of TokenScale's": 1.0,
    "worst of a load / its best static": 1.05,
    "most moves in an hour / budget": 1.0,
    "moves of constant loads": 0.0,
}
_HOUR_MINUTES = 60
_BEGINNING: Engines = ((HALF.prefill, HALF.decode),)


@dataclass(frozen=True, slots=True)
class Lived:
    """One load: minutes over target by rule, and the minutes at which `act` began moves."""

    seed: int
    kind: LoadKind | MixedKind
    minutes_over: Mapping[str, int]
    moves: Sequence[int]

    @property
    def best_static(self) -> tuple[str, int]:
        """The split with the fewest minutes over, chosen in hindsight."""
        statics = {name: of for name, of in self.minutes_over.items() if name.startswith("static")}
        name = min(statics, key=lambda each: statics[each])
        return name, statics[name]

    @property
    def most_moves_an_hour(self) -> int:
        """The most moves in any sixty minutes."""
        return max(
            (sum(at <= each < at + _HOUR_MINUTES for each in self.moves) for at in self.moves),
            default=0,
        )


def live(seed: int, minutes: int) -> Lived:
    """Simulate a load of one kind of requests under all rules."""
    kind = kind_of(seed)
    return _live(seed, kind, make_load(seed, kind, minutes), minutes)


def live_mixed(seed: int, minutes: int) -> Lived:
    """Simulate a load of two kinds of requests under all rules."""
    kind = mixed_kind_of(seed)
    return _live(seed, kind, make_mixed_load(seed, kind, minutes), minutes)


def _live(seed: int, kind: LoadKind | MixedKind, day: Day, minutes: int) -> Lived:
    profile = Profile([day], worker_options([day]))
    acting = Acting(profile, LIMITS)
    made: dict[str, Rule] = {ACT: acting}
    for name, make in _others(profile).items():
        made[name] = make()
    over = {name: _lived(day, rule, minutes) for name, rule in made.items()}
    lived = Lived(seed, kind, over, acting.moves)
    best = made[lived.best_static[0]]
    begun = replay([day], best, _BEGINNING, minutes, ENGINES).minutes_over
    return replace(lived, minutes_over={**over, BEGUN: begun})


def live_constant(seed: int, minutes: int) -> Lived:
    """Simulate a constant load with noise under our rule."""
    day = make_load(seed, LoadKind.CONSTANT, minutes)
    acting = Acting(Profile([day], worker_options([day])), LIMITS)
    return Lived(seed, LoadKind.CONSTANT, {ACT: _lived(day, acting, minutes)}, acting.moves)


def _lived(day: Day, rule: Rule, minutes: int) -> int:
    first = rule.engines if isinstance(rule, Static) else _BEGINNING
    return replay([day], rule, first, minutes, ENGINES).minutes_over


def _others(profile: Profile) -> Mapping[str, Callable[[], Rule]]:
    found: dict[str, Callable[[], Rule]] = {}
    # No load ever needs fewer than two engines of a role.
    for prefill in range(2, ENGINES - 1):
        found[f"static {prefill}+{ENGINES - prefill}"] = partial(
            Static, ((prefill, ENGINES - prefill),)
        )
    found[f"{HETERO} over all"] = lambda: Spread(FixedRatioOverAll(profile))
    found[f"{TOKENS} over all"] = lambda: Spread(VelocityOverAll(profile))
    for target in TARGETS:
        found[f"{HETERO} {target:g}"] = partial(FixedRatio, target, profile)
        found[f"{TOKENS} {target:g}"] = partial(TokenVelocity, target, profile)
    return found


def totals(lived: Sequence[Lived]) -> dict[str, int]:
    """Return minutes over target of all loads, by rule; `best static` differs by load."""
    found = {name: sum(each.minutes_over[name] for each in lived) for name in lived[0].minutes_over}
    found["best static of each"] = sum(each.best_static[1] for each in lived)
    return found


def best_of(total: Mapping[str, int], rule: str) -> tuple[str, int]:
    """Return a rule's best variant, with its minutes."""
    name = min((each for each in total if each.startswith(rule)), key=lambda each: total[each])
    return name, total[name]


def figures_of(lived: Sequence[Lived], constant: Sequence[Lived]) -> dict[str, float | None]:
    """Return the figures that bars apply to, and others.

    A load whose best static split has a minute or none is compared with one minute. All rules start
    at 4+4 but the static ones; these do too where `begun`, as a first move takes a while.
    """
    total = totals(lived)
    ours = total[ACT]
    return {
        "minutes over / static 4+4's": ours / max(1, total[f"static {HALF.prefill}+{HALF.decode}"]),
        "minutes over / best of HeteroScale's": ours / max(1, best_of(total, HETERO)[1]),
        "minutes over / best of TokenScale's": ours / max(1, best_of(total, TOKENS)[1]),
        "worst of a load / its best static": max(
            each.minutes_over[ACT] / max(1, each.best_static[1]) for each in lived
        ),
        "most moves in an hour / budget": max(
            each.most_moves_an_hour / LIMITS.moves_per_hour for each in [*lived, *constant]
        ),
        "moves of constant loads": float(sum(len(each.moves) for each in constant)),
        "minutes over / best static of each": ours / max(1, total["best static of each"]),
        "worst of a load / the same begun at 4+4": max(
            each.minutes_over[ACT] / max(1, each.minutes_over[BEGUN]) for each in lived
        ),
        "loads over 1.05 of their best static": float(
            sum(each.minutes_over[ACT] > 1.05 * max(1, each.best_static[1]) for each in lived)
        ),
        "most minutes a load is beyond that": max(
            each.minutes_over[ACT] - 1.05 * max(1, each.best_static[1]) for each in lived
        ),
        "minutes over": float(ours),
        "moves": float(sum(len(each.moves) for each in lived)),
        "loads best served by 4+4": float(
            sum(each.best_static[0] == f"static {HALF.prefill}+{HALF.decode}" for each in lived)
        ),
    }
