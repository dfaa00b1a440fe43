"""Price tables by name: those of this package, and others from files."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path

from disagg_cluster.simulator.engine.hardware import GPUS, MODELS, Gpu, Model
from disagg_cluster.simulator.engine.roofline import CostModel, Roofline
from disagg_cluster.simulator.prices.table import PriceTable, PriceTableError, parse_table
from disagg_cluster.simulator.prices.table_costs import TableCosts

_FOLDER = files(__package__) / "tables"


class NoPriceTableError(PriceTableError):
    """There is no table for these GPUs and this model; lists the existing ones."""


@cache
def table_names() -> tuple[str, ...]:
    """Return the names of all tables."""
    names = (each.name for each in _FOLDER.iterdir())
    return tuple(sorted(name.removesuffix(".csv") for name in names if name.endswith(".csv")))


@cache
def shipped_table(name: str) -> PriceTable:
    """Return the table of this name.

    Raises:
        NoPriceTableError: There is none.
    """
    if name not in table_names():
        raise NoPriceTableError(f"no price table {name!r}; there are {', '.join(table_names())}")
    return parse_table((_FOLDER / f"{name}.csv").read_text(encoding="utf-8"))


@cache
def _tables() -> Mapping[tuple[str, str, int], PriceTable]:
    tables = map(shipped_table, table_names())
    return {(table.gpu, table.model, table.gpus): table for table in tables}


def table_costs(gpu: Gpu, model: Model, gpus: int) -> TableCosts:
    """Return the measured costs of steps of this model on such a group of GPUs.

    Raises:
        NoPriceTableError: There are none.
    """
    table = _tables().get((gpu.name, model.name, gpus))
    if table is None:
        there = "; ".join(f"{model} on {n} x {gpu}" for gpu, model, n in sorted(_tables()))
        raise NoPriceTableError(f"no price table for {model.name} on {gpus} x {gpu.name}: {there}")
    return TableCosts(table, Roofline(gpu, model, gpus))


def named_costs(name: str) -> TableCosts:
    """Return the costs by the table of this name, or in the file at this path if it ends in .csv.

    Raises:
        NoPriceTableError: There is none, or its GPU or model is not known here.
        PriceTableError: The file is not a price table.
        OSError: It cannot be read.
    """
    table = read_table(Path(name)) if name.endswith(".csv") else shipped_table(name)
    gpu = next((each for each in GPUS if each.name == table.gpu), None)
    model = next((each for each in MODELS if each.name == table.model), None)
    if gpu is None or model is None:
        raise NoPriceTableError(
            f"{name} is of {table.model} on {table.gpu}; known are "
            f"{', '.join(each.name for each in (*MODELS, *GPUS))}"
        )
    return TableCosts(table, Roofline(gpu, model, table.gpus))


def read_table(path: Path) -> PriceTable:
    """Read a table from a file.

    Raises:
        PriceTableError: It is not a price table; lists all problems.
        OSError: It cannot be read.
    """
    try:
        return parse_table(path.read_text(encoding="utf-8"))
    except (PriceTableError, UnicodeDecodeError) as error:
        raise PriceTableError(f"{path}: {error}") from error


def best_costs(gpu: Gpu, model: Model, gpus: int, clock_ratio: float = 1.0) -> CostModel:
    """Return measured costs where there are any, else those of the roofline."""
    roofline = Roofline(gpu, model, gpus, clock_ratio=clock_ratio)
    table = _tables().get((gpu.name, model.name, gpus))
    return roofline if table is None else TableCosts(table, roofline)
