"""JSON that others wrote, whose content we do not choose: engines, servers, clients, files."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from disagg_cluster.host.garbage import uncollected


class TooDeepError(ValueError):
    """JSON is nested deeper than Python parses."""


def parse_foreign(
    text: str | bytes,
    *,
    object_hook: Callable[[dict[str, Any]], object] | None = None,
    object_pairs_hook: Callable[[list[tuple[str, Any]]], object] | None = None,
) -> Any:
    """Parse JSON; the hooks are those of `json.loads`.

    Raises:
        TooDeepError: It is nested too deep.
        ValueError: It is not valid JSON.
    """
    try:
        with uncollected():
            return json.loads(text, object_hook=object_hook, object_pairs_hook=object_pairs_hook)
    except RecursionError:
        raise TooDeepError("nested too deep") from None
