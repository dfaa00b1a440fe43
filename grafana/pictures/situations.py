"""What is drawn: clusters of simulated engines, as a Prometheus would have scraped them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from disagg_cluster.simulator.cluster.spec import EngineSpec
from disagg_cluster.simulator.fault import Fault
from disagg_cluster.simulator.gpu_faults import Throttled
from disagg_cluster.simulator.load import LoadOverTime, Mix, Shifting
from disagg_exporter.model import Role

_SWING_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Cast:
    """Engines on nodes and the load on them, simulated once; every copy shows the same figures.

    `by_page`: the engines were found and report no steps. `fronts`: nodes that read the frontend's
    page. `hidden`: nodes that nobody scrapes. `diagnosed`: a planner says each minute what holds
    its first tokens back.
    """

    engines: tuple[EngineSpec, ...]
    load: LoadOverTime
    fronts: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    faults: tuple[Fault, ...] = ()
    by_page: bool = False
    diagnosed: bool = False


@dataclass(frozen=True, slots=True)
class Copies:
    """So many copies of a cast in one cluster, each with nodes of its own."""

    cluster: str
    cast: Cast
    count: int = 1


@dataclass(frozen=True, slots=True)
class Situation:
    """Clusters as one Prometheus sees them, up to now, and the dashboards that are drawn of them.

    `node` is the one that the Node dashboard shows. The load is at its height at the end.
    """

    name: str
    copies: tuple[Copies, ...]
    node: str
    scrape_seconds: int = 15
    seen_seconds: float = 2.25 * _SWING_SECONDS
    dashboards: tuple[str, ...] = ("cluster", "node", "engines", "exporter", "fleet")


def _engine(role: Role, number: int, node: str) -> EngineSpec:
    name = f"{role}-{number}"
    return EngineSpec(name, role, (f"GPU-{node}-{number:04d}",), node=node)


_TWO_POOLS = (
    *(_engine(Role.PREFILL, number, "p") for number in range(3)),
    *(_engine(Role.DECODE, number, "d") for number in range(5)),
)
_MIXED = tuple(_engine(Role.MIXED, number, "m") for number in range(4))
_SWING = Shifting(Mix(5.0, 18_000, 60), Mix(3.0, 2000, 250), _SWING_SECONDS)

POOLS = Cast(_TWO_POOLS, _SWING, fronts=("p",))
SICK = replace(POOLS, faults=(Throttled(1080.0, 10_000.0, "GPU-p-0001", 0.5),), diagnosed=True)
MIXED = Cast(_MIXED, Shifting(Mix(5.0, 3000, 100), Mix(3.0, 800, 400), _SWING_SECONDS))

SITUATIONS = (
    Situation(
        "272-engines",
        (Copies("east", POOLS, 20), Copies("west", POOLS, 13), Copies("west", SICK, 1)),
        node="p-33",
    ),
    Situation("all-mixed", (Copies("mixed", MIXED, 2),), node="m-0"),
    Situation("attach-only", (Copies("attached", replace(POOLS, fronts=(), by_page=True)),), "p-0"),
    Situation("decode-only", (Copies("decode", replace(POOLS, fronts=(), hidden=("p",))),), "d-0"),
    # Later: a verdict lasts a scrape longer here, and would stand beside the next one.
    Situation(
        "scraped-each-minute",
        (Copies("slow", POOLS),),
        "p-0",
        scrape_seconds=60,
        seen_seconds=2.35 * _SWING_SECONDS,
    ),
)
"""Beside the demo, which is drawn as it runs."""
