from __future__ import annotations

import json
import logging
import sys

from disagg_cluster.host.json_log import JsonLines


def test_an_event_is_one_line_with_date_zone_and_traceback() -> None:
    record = logging.LogRecord("x", logging.WARNING, "f", 1, "%s: gone\nfor good", ("w",), None)
    record.created = 1_800_000_000.25
    try:
        raise ValueError("why")
    except ValueError:
        failed = logging.LogRecord("x", logging.ERROR, "f", 1, "bad", (), sys.exc_info())

    line, trace = JsonLines().format(record), JsonLines().format(failed)

    assert "\n" not in line + trace
    assert json.loads(line) == {
        **{"timestamp": "2027-01-15T08:00:00.250+00:00", "level": "warning"},
        "message": "w: gone\nfor good",
    }
    assert "ValueError: why" in json.loads(trace)["traceback"]
