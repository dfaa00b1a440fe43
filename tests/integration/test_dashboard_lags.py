"""How far accounts lag, as panels show it however seldom nodes are scraped: the real promtool."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.dashboards import CHOICES, NAMES, filled, queries
from support.panel_values import evaluate

pytestmark = pytest.mark.prometheus

_OF = '{cluster="c",node="demo-node",gpu="g"}'
_ENGINE = '{cluster="c",node="demo-node",engine="e"}'
WATERMARK = "watermark_timestamp_seconds"


def test_a_lag_is_that_of_the_scrape_not_the_time_since(tmp_path: Path) -> None:
    """Scraped 50 seconds ago, three seconds behind: at a scrape a minute nothing is amiss."""
    told = {
        f"disagg_gpu_{WATERMARK}{_OF}": "-3+60x20",
        f"disagg_engine_{WATERMARK}{_ENGINE}": "-3+60x20",
    }
    asked = {each.expr for name in NAMES for each in queries(name) if WATERMARK in each.expr}
    lags = [filled(f"sum({each})", CHOICES) for each in asked]

    assert len(lags) == 6
    evaluate(tmp_path, told, {each: [("{}", 3.0)] for each in lags}, scrape="1m", at="10m50s")
