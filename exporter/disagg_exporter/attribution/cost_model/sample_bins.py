"""Steps that are alike, counted together: very many steps in little memory."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from math import floor, log2

from disagg_exporter.attribution.cost_model.learned_costs import MOST_CELLS, LearnedCell
from disagg_exporter.attribution.cost_model.work import StepWork

# Bins to a doubling. Where computing overtakes reading is a matter of tokens: they are told
# apart best. Within a cell only means are kept, which is exact as long as costs are lines.
_TOKEN_BINS, _KV_BINS, _ATTENDED_BINS = 8, 2, 1
_HEAVY = 1e6
# Against one step of now. What weighs less tells nothing, and would fade to a weight of 0.
_LEAST_WEIGHT = 1e-9
_WEIGHT, _SECONDS = 0, 5


class Cells:
    """What is remembered of an engine's steps: weighted means over steps of about the same work.

    A step n steps back weighs e^(−n / memory_steps), and in the end nothing. Of more than 1200
    kinds of work the half that weighs least is forgotten; memory is about 300 bytes for each.
    """

    __slots__ = ("_cells", "_grown", "_now")

    def __init__(self, memory_steps: int) -> None:
        self._cells: dict[tuple[int, int, int], array[float]] = {}
        # Instead of fading what is old, what is new weighs more.
        self._grown = 1 + 1 / memory_steps
        self._now = 1.0

    def add(self, work: StepWork, seconds: float, weight: float, steps: int = 1) -> None:
        """Count a step in, or one that stands for several."""
        prefill, attended, decode, decode_kv = work
        key = (
            floor(_TOKEN_BINS * log2(prefill + decode)),
            floor(_KV_BINS * log2(decode_kv)) if decode_kv > 0 else -9999,
            floor(_ATTENDED_BINS * log2(attended)) if attended > 0 else -9999,
        )
        cell = self._cells.get(key)
        if cell is None:
            if len(self._cells) >= MOST_CELLS:
                self._forget()
            cell = self._cells[key] = array("d", bytes(48))
        weight *= self._now * steps
        self._now *= self._grown**steps
        cell[_WEIGHT] += weight
        cell[1] += weight * prefill
        cell[2] += weight * attended
        cell[3] += weight * decode
        cell[4] += weight * decode_kv
        cell[_SECONDS] += weight * seconds
        if self._now > _HEAVY:
            self._lighten()

    def __len__(self) -> int:
        return len(self._cells)

    def means(self) -> list[tuple[float, StepWork, float]]:
        """Return the weight, the mean work and the mean seconds of every cell."""
        found = []
        for cell in self._cells.values():
            weight, *sums, seconds = cell
            work = StepWork(*[number / weight for number in sums])
            found.append((weight / self._now, work, seconds / weight))
        return found

    def save(self) -> tuple[float, tuple[LearnedCell, ...]]:
        """Return what a step of now weighs, and all cells."""
        return self._now, tuple((*key, *_sums(cell)) for key, cell in self._cells.items())

    def restore(self, now: float, cells: Iterable[LearnedCell]) -> None:
        """Go on with what was saved, instead of what is here."""
        self._now = now
        self._cells = {cell[:3]: array("d", cell[3:]) for cell in cells}

    def _lighten(self) -> None:
        lightest = _LEAST_WEIGHT * self._now
        self._cells = {
            key: array("d", [number / self._now for number in cell])
            for key, cell in self._cells.items()
            if cell[_WEIGHT] > lightest
        }
        self._now = 1.0

    def _forget(self) -> None:
        cells = self._cells
        heaviest = sorted(cells, key=lambda key: cells[key][_WEIGHT], reverse=True)
        self._cells = {key: cells[key] for key in heaviest[: MOST_CELLS // 2]}


def _sums(cell: array[float]) -> tuple[float, float, float, float, float, float]:
    weight, prefill, attended, decode, decode_kv, seconds = cell
    return weight, prefill, attended, decode, decode_kv, seconds
