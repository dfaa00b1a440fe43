"""Deployments that others measured end to end, from aiconfigurator's `silicon_sample.csv`.

Each row is one deployment at one concurrency: means of TTFT and TPOT. The pairs and their gains
follow `separation_pairs.csv`: best over best of tokens/s/GPU among the rows that give each user at
least a number of tokens/s.
"""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

_CONCURRENCY = re.compile(r"silicon_concurrency=(\d+)")
_NODE_GPUS = 8
_RACKS = ("gb200", "gb300")


class Parallel(NamedTuple):
    """How one worker divides a model over its GPUs."""

    tensor: int
    attention_data: int
    expert_tensor: int
    expert: int

    @property
    def gpus(self) -> int:
        """The GPUs of one worker."""
        return self.tensor * self.attention_data


class Kind(NamedTuple):
    """The properties that two deployments must share to be compared."""

    system: str
    model: str
    precision: str
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Deployment:
    """One measured deployment; `gpus` is its total, `parallel` is of one worker, if mixed."""

    kind: Kind
    backend: str
    version: str
    mixed: bool
    quantization: tuple[str, str]
    parallel: Parallel
    gpus: int
    concurrency: float
    ttft_seconds: float
    tpot_seconds: float

    @property
    def requests_per_second(self) -> float:
        """The rate at which it finishes requests, at its concurrency."""
        each_seconds = self.ttft_seconds + (self.kind.output_tokens - 1) * self.tpot_seconds
        return self.concurrency / each_seconds

    @property
    def tokens_per_second_per_gpu(self) -> float:
        """The rate at which it writes tokens, per GPU."""
        return self.requests_per_second * self.kind.output_tokens / self.gpus


class Pair(NamedTuple):
    """The best mixed and the best separate tokens/s/GPU measured at one speed."""

    kind: Kind
    user_tokens_per_second: float
    mixed: float
    separate: float

    @property
    def gain(self) -> float:
        """The ratio of separate to mixed."""
        return self.separate / self.mixed


def read_deployments(path: Path) -> list[Deployment]:
    """Return all rows with known numbers of GPUs and requests."""
    with path.open(encoding="utf-8", newline="") as file:
        found = [_deployment(row) for row in csv.DictReader(file)]
    return [each for each in found if each is not None]


def read_pairs(path: Path) -> list[Pair]:
    """Return the pairs listed in a file."""
    with path.open(encoding="utf-8", newline="") as file:
        return [
            Pair(
                Kind(
                    row["system"],
                    row["model"],
                    row["precision"],
                    int(float(row["isl"])),
                    int(float(row["osl"])),
                ),
                float(row["tokens_per_s_per_user"]),
                float(row["agg_tokens_per_s_per_gpu"]),
                float(row["disagg_tokens_per_s_per_gpu"]),
            )
            for row in csv.DictReader(file)
        ]


def pairs_of(deployments: Iterable[Deployment], speeds: Sequence[float]) -> list[Pair]:
    """Return all pairs among deployments at these tokens/s a user."""
    by_kind: dict[Kind, tuple[list[Deployment], list[Deployment]]] = defaultdict(lambda: ([], []))
    for each in deployments:
        by_kind[each.kind][each.mixed].append(each)
    pairs = []
    for kind, (separate, mixed) in sorted(by_kind.items()):
        for speed in speeds:
            best = [
                max(
                    (
                        each.tokens_per_second_per_gpu
                        for each in some
                        if 1 / each.tpot_seconds >= speed
                    ),
                    default=None,
                )
                for some in (mixed, separate)
            ]
            if best[0] is not None and best[1] is not None:
                pairs.append(Pair(kind, speed, best[0], best[1]))
    return pairs


def _deployment(row: Mapping[str, str]) -> Deployment | None:
    mixed = row["mode"] == "agg"
    found = _CONCURRENCY.search(row["silicon_data_source"])
    kind = Kind(
        row["system"], row["model_path"], row["precision"], int(row["isl"]), int(row["osl"])
    )
    if mixed:
        gpus = _product(row, "tp_size", "pp_size", "attention_dp_size")
    else:
        gpus = sum(
            _number(row, f"{role}_num_workers", 0)
            * _product(
                row, *(f"{role}_{size}" for size in ("tp_size", "pp_size", "attention_dp_size"))
            )
            for role in ("prefill", "decode")
        )
    concurrency = float(found[1]) if found else _number(row, "batch_size", 0)
    if mixed and row["attention_dp_size"] in ("", "1"):
        # Some rows state the requests of all replicas, but the GPUs of one.
        concurrency = min(concurrency, _number(row, "batch_size", 0) or concurrency)
    if not gpus or not concurrency or not row["silicon_tpot_ms"]:
        return None
    return Deployment(
        kind=kind,
        backend=row["backend"],
        version=row["backend_version"],
        mixed=mixed,
        quantization=(row["gemm_quant_mode"], row["moe_quant_mode"]),
        parallel=_parallel(row) if mixed else Parallel(1, 1, 1, 1),
        gpus=round(gpus),
        concurrency=concurrency,
        ttft_seconds=float(row["silicon_ttft_ms"]) / 1e3,
        tpot_seconds=float(row["silicon_tpot_ms"]) / 1e3,
    )


def _parallel(row: Mapping[str, str]) -> Parallel:
    """Return how a worker divides the model.

    Some rows multiply the parallelism of attention by that of the experts: a worker of 64 GPUs on
    nodes of 8 that are not connected to a rack has 8.
    """
    tensor, data, expert = (
        round(_number(row, name, 1)) for name in ("tp_size", "attention_dp_size", "moe_ep_size")
    )
    if tensor * data > _NODE_GPUS and row["system"] not in _RACKS:
        tensor, data = max(1, tensor // expert), data if tensor > 1 else max(1, data // expert)
    gpus = tensor * data
    shared = max(1, min(expert, gpus))
    return Parallel(tensor, data, gpus // shared, shared)


def _number(row: Mapping[str, str], name: str, missing: float) -> float:
    return float(row[name]) if row.get(name) else missing


def _product(row: Mapping[str, str], *names: str) -> float:
    product = 1.0
    for name in names:
        product *= _number(row, name, 1)
    return product
