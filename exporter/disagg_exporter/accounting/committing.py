"""What can no longer change goes from the engines' timelines into the devices' books."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from disagg_exporter.accounting.devices.device_account import DeviceLedger
from disagg_exporter.accounting.engine_account import EngineLedger
from disagg_exporter.accounting.intervals.rules import Rules
from disagg_exporter.model import Assignment, Phase, Role, TokenAccount
from disagg_exporter.model.checkpoints import TokenCheckpoint


class NodeTokens:
    """The tokens of a node by whose they were, those of engines long gone included."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[Role, Phase, str, str]] = Counter()

    def count(self, owner: Assignment, phase: Phase, tokens: int) -> None:
        """Add tokens of one phase for what their engine was."""
        self._counts[owner.role, phase, owner.model_name, owner.engine_namespace] += tokens

    def forget_model(self, model_name: str) -> None:
        """Drop the tokens of a model: there is no sum that they would be missing from."""
        for key in [key for key in self._counts if key[2] == model_name]:
            del self._counts[key]

    def checkpoint(self) -> tuple[TokenCheckpoint, ...]:
        """Return them as they are kept."""
        return tuple(TokenCheckpoint(*key, tokens) for key, tokens in self._counts.items())

    def resume(self, before: Iterable[TokenCheckpoint]) -> None:
        """Go on with the tokens of before."""
        self._counts.update({each[:4]: each.tokens for each in before})

    def accounts(self) -> tuple[TokenAccount, ...]:
        """Return them as shown."""
        return tuple(TokenAccount(*key, tokens) for key, tokens in self._counts.items())


def collect(books: EngineLedger, devices: Mapping[str, DeviceLedger], node: NodeTokens) -> None:
    """Take what an engine's lanes have settled: owed time to its devices, tokens to the books."""
    owner = books.assignment
    for rank, lane in books.lanes.items():
        for overflow in lane.overflows:
            for gpu in owner.of_rank(rank):
                if gpu in devices:
                    devices[gpu].owe(owner.engine, overflow)
        _count(books, node, owner, (0, 0))  # both phases are there from the start
        for told in lane.tokens:
            for was, *tokens in books.owners.shares(told):
                _count(books, node, was, tokens)
        books.lost_records += lane.lost_records
        books.late_records += lane.late_records
        lane.start_counting_anew()
    books.owners.forget_before(min((lane.mark_ns for lane in books.lanes.values()), default=0))


def _count(books: EngineLedger, node: NodeTokens, owner: Assignment, tokens: Sequence[int]) -> None:
    for phase, count in zip(Phase, tokens, strict=True):
        books.tokens[owner.role, phase] += count
        node.count(owner, phase, count)


def commit(
    ledger: DeviceLedger, engines: Mapping[str, EngineLedger], now_ns: int, rules: Rules
) -> None:
    """Move one device's watermark as far as its engines let it, and credit them (A6)."""
    readers = ledger.awaited()
    awaited = {name: engines[name] for name in readers if name in engines}
    marks = [
        lane.mark_ns
        for name, books in awaited.items()
        for lane in books.lanes.values()
        if lane.mark_ns < readers[name]
    ]
    free_ns = max(now_ns - rules.packing_delay_ns, ledger.last_death_ns)
    target_ns = ledger.target(min(marks, default=free_ns))
    if target_ns <= ledger.watermark_ns:
        return
    pieces = {
        name: books.between(ledger.watermark_ns, target_ns) for name, books in awaited.items()
    }
    for used in ledger.commit(target_ns, pieces):
        # What was owed to an engine that is forgotten is the device's alone.
        if used.engine in engines:
            slice_ns = used.length_ns * ledger.device.slices
            engines[used.engine].gpu_slice_ns[used.role, used.phase] += slice_ns


def watermarks(devices: Iterable[DeviceLedger]) -> dict[str, set[int]]:
    """Return for each engine up to when the devices that await it have read its timelines."""
    read_ns: defaultdict[str, set[int]] = defaultdict(set)
    for ledger in devices:
        for name in ledger.awaited():
            read_ns[name].add(ledger.watermark_ns)
    return read_ns


def drop_read(devices: Iterable[DeviceLedger], engines: Mapping[str, EngineLedger]) -> None:
    """Let every engine forget the timeline that all devices which await it have read."""
    read_ns = watermarks(devices)
    for name, books in engines.items():
        books.drop_read(min(read_ns.get(name, ()), default=None))
