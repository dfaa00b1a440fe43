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

    `requests` arrive, tokens are computed (a cached prompt costs nothing), all a second.
    `prefill_gpus` and `decode_gpus` are GPU-seconds a second.
    """

    key: LoadKey
    prompt_tokens: LoadSeries
    output_tokens: LoadSeries
    requests: LoadSeries | None = None
    prefill_gpus: LoadSeries | None = None
    decode_gpus: LoadSeries | None = None


def arriving(finished: Floats, in_flight: Floats, step_seconds: float) -> Floats:
    """Requests a second that came: those that ended, and the growth of what is in flight.

    A saturated engine ends what it can, whatever comes: by what it ends alone it would always seem
    to be asked for just what it can do. The first step has no growth.
    """
    growth = np.diff(in_flight, prepend=in_flight[:1]) / step_seconds
    return np.maximum(finished + np.where(np.isfinite(growth), growth, 0.0), 0.0)


def demanded(
    served: Floats, arrived: Floats, finished: Floats, saturated: NDArray[np.bool_]
) -> Floats:
    """Tokens a second that would have been computed had there been room.

    In saturated steps those served grow by as much as more requests came than ended; what was
    served there is a ceiling. Elsewhere the two differ by chance only, and served is left as it is.
    """
    growth = np.divide(arrived, finished, out=np.ones_like(arrived), where=finished > 0)
    growth = np.clip(np.where(np.isfinite(growth), growth, 1.0), 1.0, _MOST_GROWTH)
    return np.where(saturated, served * growth, served)
