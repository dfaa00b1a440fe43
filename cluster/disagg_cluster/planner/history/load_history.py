"""The load of one model, by component."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from disagg_cluster.planner.history.load_series import Floats, LoadSeries

_MOST_GROWTH = 10.0


@dataclass(frozen=True, slots=True, order=True)
class LoadKey:
    """Owner of a load; fields are empty where the source does not name them."""

    cluster: str = ""
    model_name: str = ""
    engine_namespace: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class LoadHistory:
    """Series on one time grid, None where a source does not report one. All rates are per second.

    `requests` are arrivals including rejected ones (`rejections`, where they are counted). Token
    series are computed tokens; prompt tokens found in a prefix cache are `cached_tokens`.
    `prefill_gpus` and `decode_gpus` are GPU-seconds per second. Capacity used is that of the
    fullest role that serves a phase; from 1 on the phase is saturated, and its token series
    estimates the demand from arrivals, as does that of output tokens while prefill is saturated.
    Cached tokens are estimated as computed prompt tokens are.
    """

    key: LoadKey
    prompt_tokens: LoadSeries
    output_tokens: LoadSeries
    requests: LoadSeries | None = None
    prefill_gpus: LoadSeries | None = None
    decode_gpus: LoadSeries | None = None
    rejections: LoadSeries | None = None
    cached_tokens: LoadSeries | None = None
    prefill_capacity_used: LoadSeries | None = None
    decode_capacity_used: LoadSeries | None = None


def demanded(
    served: Floats,
    arrived: Floats,
    ended: Floats,
    refused: Floats,
    saturated: NDArray[np.bool_],
) -> Floats:
    """Tokens per second that would have been computed with enough capacity.

    `served` belongs to the requests that were not rejected, or, in saturated steps, to those that
    ended, since a saturated engine completes what it can regardless of arrivals. It is scaled by
    arrivals divided by those requests, tenfold at most, and unchanged where requests are unknown.
    A request may be refused by several engines, and then be served: what ended was not rejected.
    """
    accepted = np.fmax(arrived - np.where(np.isfinite(refused), refused, 0.0), ended)
    completed = np.where(saturated & np.isfinite(ended), ended, accepted)
    with np.errstate(over="ignore"):  # division by a tiny number: clipped below
        growth = np.divide(arrived, completed, out=np.ones_like(arrived), where=completed > 0)
    growth = np.clip(np.where(np.isnan(growth), 1.0, growth), 1.0, _MOST_GROWTH)
    asked: Floats = served * growth
    return asked
