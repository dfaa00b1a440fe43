"""The fast gauges: work of the last second, provisional (accounting A8)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from disagg_exporter.accounting.devices.assignments import role_of
from disagg_exporter.accounting.devices.device_account import DeviceLedger
from disagg_exporter.accounting.engine_account import EngineLedger
from disagg_exporter.accounting.timelines.window_timeline import EngineTimeline
from disagg_exporter.model import SECOND_NS, BusyGpus, EngineState, Phase, Role


def provisional_gauges(
    engines: Mapping[str, EngineLedger], devices: Iterable[DeviceLedger], now_ns: int
) -> tuple[tuple[BusyGpus, ...], float]:
    """Return the fast gauges and their window in seconds."""
    working = {name: engine.timelines for name, engine in engines.items() if not engine.is_gone}
    timelines = (each for of_engine in working.values() for each in of_engine.values())
    width_ns = window_ns(timelines, now_ns)
    return busy_gpus(working, devices, now_ns, width_ns), width_ns / SECOND_NS


def window_ns(timelines: Iterable[EngineTimeline], now_ns: int) -> int:
    """Return the width of the window: 1 s, or twice the longest recent step if that is longer."""
    return max((_reach_ns(timeline, now_ns) for timeline in timelines), default=SECOND_NS)


def _reach_ns(timeline: EngineTimeline, now_ns: int) -> int:
    reach_ns = max(SECOND_NS, 2 * timeline.recent.longest_ns)
    # Steps are kept while an engine is idle: its last ones may be old.
    recent = _running(timeline, now_ns) or now_ns - timeline.last_record_ns < reach_ns
    return reach_ns if recent else SECOND_NS


def _running(timeline: EngineTimeline, now_ns: int) -> bool:
    return timeline.work_pending and timeline.is_live(now_ns)


def busy_gpus(
    working: Mapping[str, Mapping[int, EngineTimeline]],
    devices: Iterable[DeviceLedger],
    now_ns: int,
    width_ns: int,
) -> tuple[BusyGpus, ...]:
    """Return the busy devices per role, phase and owner over at most the last `width_ns`.

    `working` holds each engine's timelines, by rank. The width of an engine's window depends only
    on its own steps: a neighbour's long steps would dilute its short ones, and a hostile neighbour
    could make every engine look idle. Both phases of every assigned engine are present, at 0 while
    it is idle, so that a sum over nodes never lacks a term. A device counts as at most one,
    however many engines share it.
    """
    widths_ns = {
        name: min(width_ns, window_ns(timelines.values(), now_ns))
        for name, timelines in working.items()
    }
    known: dict[tuple[str, tuple[int, ...]], dict[Phase, float]] = {}
    sums: defaultdict[tuple[Role, Phase, str, str, str], float] = defaultdict(float)
    for device in devices:
        gpu = device.device.gpu
        engines = {
            name: a
            for name, a in device.engines().items()
            if name in working and a.state is not EngineState.GONE
        }
        shares: dict[str, dict[Phase, float]] = {}
        for name, a in engines.items():
            ranks = tuple(rank for rank in working[name] if gpu in a.of_rank(rank))
            if (name, ranks) not in known:
                timelines = [working[name][rank] for rank in ranks]
                known[name, ranks] = _shares(timelines, now_ns, widths_ns[name])
            shares[name] = known[name, ranks]
        crowd = max(sum(sum(share.values()) for share in shares.values()), 1.0)
        role = role_of(engines)
        for name, a in engines.items():
            for phase in Phase:
                key = (role, phase, a.model_name, a.engine_namespace, device.device.gpu_name)
                sums[key] += shares[name][phase] * device.device.weight / crowd
    return tuple(BusyGpus(*key, gpus) for key, gpus in sums.items())


def _shares(timelines: Iterable[EngineTimeline], now_ns: int, width_ns: int) -> dict[Phase, float]:
    """Return the share of the window that an engine spent in each phase."""
    worked_ns = dict.fromkeys(Phase, 0)
    for timeline in timelines:
        # A running step is not known yet, so a busy engine's window ends at its last record.
        end_ns = timeline.last_record_ns if _running(timeline, now_ns) else now_ns
        if timeline.last_record_ns <= end_ns - width_ns:
            continue  # the engine is idle
        for phase, length_ns in timeline.recent.phases_ns(end_ns - width_ns, end_ns).items():
            worked_ns[phase] += length_ns
    total_ns = max(sum(worked_ns.values()), width_ns)
    return {phase: length_ns / total_ns for phase, length_ns in worked_ns.items()}
