"""The load of one model, by what it is made of."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from disagg_cluster.planner.history.load_series import Floats, LoadSeries

_MOST_GROWTH = 10.0


@dataclass(frozen=True, slots=True, order=True)
class LoadKey:
    """Whose load: empty where a source does not say."""

    cluster: str = ""
    model_name: str = ""
    engine_namespace: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class LoadHistory:
    """Series of one clock, and None for what a source does not tell.

    `requests` arrive, those that are refused (`rejections`, where anybody counts them) included.
    Tokens are computed; what a prefix cache spared of prompts is `cached_tokens`. All a second.
    `prefill_gpus` and `decode_gpus` are GPU-seconds a second. Capacity used is of the fullest
    engines' role that serves a phase; from 1 on the phase is saturated, and what its tokens say is
    what would have been asked, by arrivals.
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
    """Tokens a second that would have been computed had there been room.

    Served is what the requests had that were not refused; in saturated steps, what those had that
    ended, for a saturated engine ends what it can, whatever comes. It grows by as much as more
    requests came, tenfold at most. Where requests are not known it is left as it is.
    """
    let_in = arrived - np.where(np.isfinite(refused), refused, 0.0)
    had_room = np.where(saturated & np.isfinite(ended), ended, let_in)
    with np.errstate(over="ignore"):  # by next to nothing: beyond the most anyway
        growth = np.divide(arrived, had_room, out=np.ones_like(arrived), where=had_room > 0)
    growth = np.clip(np.where(np.isnan(growth), 1.0, growth), 1.0, _MOST_GROWTH)
    asked: Floats = served * growth
    return asked
