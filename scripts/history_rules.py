"""Generates the recording rules of the history that forecasts need.

`python -m scripts.history_rules > alerts/rules/disagg-recording-history.yaml`
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator

from disagg_cluster.planner.history.history_queries import (
    HISTORY_QUERIES,
    RECORDED_EVERY_SECONDS,
    HistoryQuery,
    SampleSource,
    range_of,
)

_COMMENT_COLUMNS = 92

_HEAD = f"""\
# Recording rules of the past load, for forecasts and plans. Written by `python -m
# scripts.history_rules` from what the planner asks for; change that, not this file.
#
# At most 12 series per cluster, model and namespace, one value each per minute: 20 models are
# 346,000 samples a day. Where they are not recorded, the planner queries the same expressions,
# which touch the series of every node.
groups:
  - name: disagg-history
    interval: {range_of(RECORDED_EVERY_SECONDS)}
    rules:
"""


def history_rules() -> str:
    """Return the whole file."""
    return _HEAD + "\n".join("".join(_lines(query)) for query in HISTORY_QUERIES)


def _lines(query: HistoryQuery) -> Iterator[str]:
    for line in textwrap.wrap(query.what, _COMMENT_COLUMNS):
        yield f"      # {line}\n"
    yield f"      - record: {query.record}\n"
    yield "        expr: |\n"
    for line in query.from_nodes(SampleSource()).splitlines():
        yield f"          {line}\n"


if __name__ == "__main__":
    sys.stdout.write(history_rules())
