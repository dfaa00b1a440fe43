"""Each counter on the page, as written there, through all events of a node.

Prometheus takes a counter that decreases, even by the last bit of a float, for one that was reset,
and `increase()` then adds the whole of it once more.
"""

from __future__ import annotations

from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from disagg_cluster.continuity.checkpoint_text import Checkpoint, decode, encode
from disagg_cluster.supervisor.journal.journal_text import Where
from disagg_exporter.accounting import Ledger
from disagg_exporter.metrics.page_cache import PageText
from disagg_exporter.metrics.render import rows_of
from disagg_exporter.model import (
    Assignment,
    Device,
    DeviceReading,
    DeviceSweep,
    EngineState,
    Role,
    Snapshot,
)
from support.accounting import SECOND_NS, StepReporter

GPUS = (
    Device("g0", 0, "H100", "nvidia0"),
    Device("g1", 1, "H100", "nvidia1"),
    Device("m0", 2, "H100", "nvidia2/gi0", weight=3 / 7),
    Device("m1", 3, "H100", "nvidia2/gi1", weight=1 / 7),
)
ON_GPUS = {"a": ("g0", "g1"), "b": ("g1", "m0"), "c": ("m0", "m1")}
ON_CPUS = ("d", "e", "f", "g")
ENGINES = (*ON_GPUS, *ON_CPUS)
MODELS = ("llama", "qwen", "phi")
HERE = Where(boot_id="boot", pid_namespace="pids")


class Node:
    """A ledger with its engines' plugins and its devices' drivers."""

    def __init__(self) -> None:
        self.ledger, self.now_ns = Ledger(), SECOND_NS
        self.gpus = list(GPUS)
        self.tellers: dict[str, StepReporter] = {}
        self.joules = 0.0
        self._incarnations = 0
        for gpu in self.gpus:
            self.ledger.add_device(gpu, self.now_ns)
        for engine in ENGINES:
            self.start(engine, MODELS[0])

    def start(self, engine: str, model_name: str) -> None:
        """Add an engine, or let it serve another model."""
        if engine not in self.tellers:
            self._incarnations += 1
            self.tellers[engine] = StepReporter(engine, pid=1, incarnation=self._incarnations)
        if engine in ON_CPUS:
            self.ledger.add_device(Device(f"cpu-{engine}", -1, "CPU", "cpu"), self.now_ns)
        self._assign(engine, EngineState.READY, model_name)

    def step(self, engine: str, length_ns: int, tokens: tuple[int, int]) -> None:
        """Let an existing engine make a step, and let its duration pass."""
        self.pass_time(length_ns)
        if engine in self.tellers:
            teller = self.tellers[engine]
            step = teller.step(
                self.now_ns / SECOND_NS,
                length_ns / SECOND_NS,
                context_tokens=tokens[0],
                computed_tokens=tokens[0],
                generation_tokens=tokens[1],
            )
            self.ledger.step(teller.key, step, now_ns=self.now_ns)

    def pass_time(self, length_ns: int) -> None:
        """Let time pass, with a reading of each device and a heartbeat of each engine."""
        self.now_ns += length_ns
        self.joules += length_ns / SECOND_NS * 123.4
        readings = tuple(
            DeviceReading(gpu.gpu, self.now_ns, busy_ratio=0.3, energy_joules=self.joules)
            for gpu in self.gpus
        )
        self.ledger.read(DeviceSweep(self.now_ns, readings))
        for teller in self.tellers.values():
            beat = teller.beat(self.now_ns / SECOND_NS)
            self.ledger.heartbeat(teller.key, beat, overlapped=False, now_ns=self.now_ns)
        self.ledger.advance(self.now_ns)

    def leave(self, engine: str) -> None:
        """Remove an engine for good; a pseudo-device goes with it."""
        if self.tellers.pop(engine, None) is not None:
            self._assign(engine, EngineState.GONE, MODELS[0])
            self.ledger.advance(self.now_ns)
            self.ledger.forget(engine)

    def restart(self, without: str) -> None:
        """Start the next daemon, which may find one device fewer."""
        text = encode(HERE, Checkpoint(self.ledger.checkpoint(self.now_ns)))
        self.now_ns += SECOND_NS
        self.gpus = [gpu for gpu in self.gpus if gpu.gpu != without]
        before = decode(text, HERE, self.now_ns).ledger
        self.ledger = Ledger()
        self.ledger.resume(before, self.gpus, range(2), self.now_ns)

    def counters(self) -> dict[str, float]:
        """Return the rows of all counters, as parsed from the page's text."""
        snapshot = Snapshot(
            self.now_ns,
            0.0,
            self.now_ns,
            accounts=self.ledger.device_accounts(),
            removed_accounts=self.ledger.removed_accounts(),
            engine_accounts=self.ledger.engine_accounts(self.now_ns),
            tokens=self.ledger.token_accounts(),
        )
        page = PageText().write(rows_of(snapshot, self.now_ns), openmetrics=False).decode()
        rows = (line.rpartition(" ") for line in page.splitlines() if not line.startswith("#"))
        return {row: float(value) for row, _, value in rows if "_total{" in row}

    def _assign(self, engine: str, state: EngineState, model_name: str) -> None:
        gpus = ON_GPUS.get(engine, (f"cpu-{engine}",))
        devices = tuple(gpu for gpu in gpus if gpu in {*(g.gpu for g in self.gpus), *gpus[:1]})
        told = Assignment(engine, Role.MIXED, devices, state, self.now_ns, (1,), model_name, "team")
        self.ledger.assign(told)


LENGTHS_NS = st.integers(1, 7 * SECOND_NS)
TOKENS = st.sampled_from([(100, 0), (0, 3), (50, 7)])
EVENTS = st.one_of(
    st.tuples(st.just("step"), st.sampled_from(ENGINES), LENGTHS_NS, TOKENS),
    st.tuples(st.just("step"), st.sampled_from(ENGINES), LENGTHS_NS, TOKENS),
    st.tuples(st.just("pass_time"), LENGTHS_NS),
    st.tuples(st.just("start"), st.sampled_from(ENGINES), st.sampled_from(MODELS)),
    st.tuples(st.just("leave"), st.sampled_from(ENGINES)),
    st.tuples(st.just("forget_model"), st.sampled_from(MODELS)),
    st.tuples(st.just("restart"), st.sampled_from(["", "g0", "m0"])),
)


A_DEVICE_GOES = [
    ("step", "d", 100_000_000, (100, 0)),
    ("step", "e", 2_300_000_000, (100, 0)),
    ("step", "f", 1_500_000_000, (100, 0)),
    ("step", "g", 900_000_000, (100, 0)),
    ("pass_time", 7 * SECOND_NS),
    ("leave", "d"),
]
A_NAME_IS_FORGOTTEN = [
    ("step", "a", 2_100_000_000, (100, 0)),
    ("start", "a", "qwen"),
    ("step", "a", 1_300_000_000, (100, 0)),
    ("start", "a", "phi"),
    ("step", "a", 2_600_000_000, (100, 0)),
    ("start", "a", "llama"),
    ("step", "a", 700_000_000, (100, 0)),
    *(("start", engine, "llama") for engine in ENGINES[1:]),
    ("pass_time", 7 * SECOND_NS),
    ("forget_model", "qwen"),
]

AN_ACTIVITY_IS_FORGOTTEN_BUT_NO_TIME = [
    ("start", "a", "phi"),
    ("step", "a", 1, (100, 0)),
    ("restart", "g0"),
    ("pass_time", 1),
    ("start", "a", "qwen"),
    ("leave", "b"),
    ("pass_time", 2),
    ("start", "a", "llama"),
    ("forget_model", "qwen"),
    ("step", "a", 2_118_805_420, (100, 0)),
    ("step", "a", 3_881_194_580, (100, 0)),
    ("forget_model", "phi"),
]

A_MODEL_IS_STILL_SERVED_ON_ONE_DEVICE = [
    ("step", "a", 1, (100, 0)),
    ("start", "g", "qwen"),
    ("start", "e", "qwen"),
    ("pass_time", 7 * SECOND_NS),
    ("step", "a", 7 * SECOND_NS, (100, 0)),
    ("pass_time", 7 * SECOND_NS),
    ("restart", ""),
    ("step", "f", 617, (100, 0)),
    ("start", "g", "phi"),
    ("leave", "e"),
    ("forget_model", "qwen"),
]


@example(A_DEVICE_GOES)
@example(A_MODEL_IS_STILL_SERVED_ON_ONE_DEVICE)
@example(AN_ACTIVITY_IS_FORGOTTEN_BUT_NO_TIME)
@example(A_NAME_IS_FORGOTTEN)
@given(st.lists(EVENTS, min_size=10, max_size=40))
def test_no_counter_falls_when_devices_go_and_names_are_forgotten(
    events: list[tuple[Any, ...]],
) -> None:
    """A row may end, like those of a forgotten model; while it exists it does not decrease."""
    node = Node()
    before = node.counters()
    for name, *details in events:
        if name == "forget_model":
            node.ledger.forget_model(*details)
        else:
            getattr(node, name)(*details)
        after = node.counters()

        fallen = {
            row: (before[row], after[row]) for row in before if after.get(row, 9e99) < before[row]
        }
        assert fallen == {}
        before = after
