"""What is learned of an engine's capacity from its records in a few minutes of simulation."""

from __future__ import annotations

from disagg_cluster.simulator.cluster.spec import ClusterSpec, EngineSpec, Reporting
from disagg_cluster.simulator.load import Constant, Lengths, Mix
from disagg_cluster.simulator.simulation import Simulation
from disagg_exporter.capacity.engine import StepCapacity
from disagg_exporter.capacity.stream import learn
from disagg_exporter.capacity.work import Inbox
from disagg_exporter.model import SECOND_NS
from disagg_exporter.steps.messages import ControlMessage, MessageKind

RUN_SECONDS = 180
LENGTHS = Lengths(prompt_spread=0.8, output_spread=0.6)
STEPS_ONLY = Reporting(page_seconds=None, sweep_seconds=None, requests=False)


def learn_capacity(
    specs: tuple[EngineSpec, ...], mix: Mix, name: str, targets: tuple[float, ...]
) -> tuple[list[StepCapacity], float]:
    """Return what a run teaches of an engine, and the prefill tokens a second it computed."""
    simulation = Simulation(
        ClusterSpec(specs), Constant(mix), lengths=LENGTHS, reporting=STEPS_ONLY, seed=1
    )
    known = [StepCapacity(target) for target in targets]
    inbox, next_ns, tokens = Inbox(), SECOND_NS, 0

    def advance(now_ns: int) -> None:
        received = list(inbox.take())
        for engine in known:
            learn(pair for key, some in received for pair in engine.ingest(key, some))
            engine.advance(now_ns)

    for t_ns, event in simulation.events(RUN_SECONDS * SECOND_NS):
        while next_ns <= t_ns:
            advance(next_ns)
            next_ns += SECOND_NS
        if not isinstance(event, ControlMessage) or event.key.engine != name or event.step is None:
            continue
        if event.kind is not MessageKind.STEP:
            inbox.heartbeat(event.key, event.step)
            continue
        inbox.step(event.key, event.step, overlapped=False)
        if t_ns > (RUN_SECONDS - 60) * SECOND_NS:
            tokens += event.step.context_tokens
    advance(RUN_SECONDS * SECOND_NS)
    return known, tokens / 60
