"""Metrics pages of frontends and routers: users' requests by model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from disagg_exporter.engine_pages.exposition.layout import SeriesKey, SeriesKeys
from disagg_exporter.engine_pages.exposition.lines import PageError, SeriesFilter, check_whole, scan
from disagg_exporter.engine_pages.parse import ServingReader
from disagg_exporter.engine_pages.series import Adapter, Field, IndexedKey, Samples, Series
from disagg_exporter.model import EnginePage, RequestSource, Total


@dataclass(frozen=True, slots=True)
class Front:
    """One kind of frontend or router: its request source and its metric series."""

    source: RequestSource
    adapter: Adapter


# Version 1.6.1. Its times start at a request's arrival at the frontend, so they include all of a
# user's wait except the network's.
DYNAMO_FRONTEND = Front(
    RequestSource.FRONTEND,
    Adapter(
        kind="dynamo_frontend",
        prefixes=("dynamo_frontend_",),
        series=(
            Series(Total.ARRIVED_REQUESTS, ("requests_started_total",)),
            Series(Total.ENDED_SUCCESS, ("requests_total",), "status", ("success",), sparse=True),
            Series(Total.ENDED_ERROR, ("requests_total",), "status", ("error",), sparse=True),
            Series(Total.REJECTED_FOR_LOAD, ("router_admission_rejected_total",)),
            # Only a KV-aware router has a queue.
            Series(Field.WAITING, ("router_queue_pending_requests",)),
        ),
        time_to_first_token="time_to_first_token_seconds",
        duration="request_duration_seconds",
        prompt_tokens="input_sequence_tokens",
        output_tokens="output_sequence_tokens",
    ),
)

# Version 0.1.17. It reports when an answer ends, not when it begins, and no models.
VLLM_ROUTER = Front(
    RequestSource.ROUTER,
    Adapter(
        kind="vllm_router",
        prefixes=("vllm_router_pd_",),
        series=(),
        duration="request_duration_seconds",
    ),
)

# Read from its reference of 2026. It observes the first token only with gRPC and streaming.
SMG = Front(
    RequestSource.ROUTER,
    Adapter(
        kind="smg",
        prefixes=("smg_router_",),
        series=(
            Series(Total.ARRIVED_REQUESTS, ("requests_total",)),
            Series(Total.ENDED_ERROR, ("request_errors_total",)),
        ),
        time_to_first_token="ttft_seconds",
        duration="request_duration_seconds",
    ),
)

FRONTS = (DYNAMO_FRONTEND, VLLM_ROUTER, SMG)

_PREFIXES = (b"dynamo_frontend_", b"vllm_router_", b"smg_router_")
_MODEL = "model"
_WANTED = SeriesFilter(name for front in FRONTS for name in front.adapter.names)
MOST_MODELS = 64
"""Models read per page, the first ones on it."""


@dataclass(frozen=True, slots=True)
class FrontPage:
    """Each model's requests by one page, since its program started.

    If a program reports no models, all are under the empty name. `left_out_models` counts those
    beyond `MOST_MODELS`.
    """

    source: RequestSource
    models: tuple[EnginePage, ...]
    left_out_models: int = 0


class _FrontReader:
    """Reads the pages of one layout."""

    def __init__(self, layout: Sequence[SeriesKey]) -> None:
        front, by_model = _by_model(layout)
        self._left_out_models = max(len(by_model) - MOST_MODELS, 0)
        self.source, self._kind = front.source, front.adapter.kind
        self._readers = {
            model: ServingReader(front.adapter, found)
            for model, found in islice(by_model.items(), MOST_MODELS)
        }

    def page(self, numbers: Sequence[float], t_ns: int) -> FrontPage:
        """Return the page with these values."""
        models = tuple(
            self._model_page(model, reader, numbers, t_ns)
            for model, reader in self._readers.items()
        )
        return FrontPage(self.source, models, self._left_out_models)

    def _model_page(
        self, model: str, reader: ServingReader, numbers: Sequence[float], t_ns: int
    ) -> EnginePage:
        values = reader.values(numbers)
        serving = reader.counts(numbers, values)
        waiting = values.get(Field.WAITING)
        return EnginePage(self._kind, t_ns, model, waiting=waiting, serving=serving)


def _by_model(layout: Sequence[SeriesKey]) -> tuple[Front, dict[str, Samples]]:
    for front in FRONTS:
        names = front.adapter.names
        by_model: dict[str, dict[str, list[IndexedKey]]] = {}
        for index, key in enumerate(layout):
            if key.name in names:
                found = by_model.setdefault(key.labels.get(_MODEL, ""), {})
                found.setdefault(names[key.name], []).append((index, key))
        if by_model:
            return front, dict(by_model)
    kinds = ", ".join(front.adapter.kind for front in FRONTS)
    raise PageError(f"no series of a known frontend or router on the page (known: {kinds})")


def is_front_page(text: bytes) -> bool:
    """Return whether a frontend or router wrote the page, though it may have served nothing yet."""
    return any(prefix in text for prefix in _PREFIXES)


def parse_front_page(text: bytes, t_ns: int, keys: SeriesKeys | None = None) -> FrontPage:
    """Read the page of a frontend or router.

    Args:
        text: The page.
        t_ns: When it was requested.
        keys: Series keys of its earlier pages.

    Raises:
        PageError: The page is not of a known frontend or router, is cut off, has an invalid line
            among those we need, a sample twice, or a counter that is not a number from 0 up.
    """
    if text:
        check_whole(text)
    if not text.strip():
        return FrontPage(RequestSource.ROUTER, ())  # as from vllm-router before its first request
    keys = SeriesKeys() if keys is None else keys
    layout, numbers = scan(text, _WANTED, keys, "frontend's")
    return keys.derive(layout, _FrontReader).page(numbers, t_ns)
