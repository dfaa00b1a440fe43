"""The daemon's log with one line of JSON per event, for programs that collect logs."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime


class JsonLines(logging.Formatter):
    """Writes `timestamp` (date, time to the millisecond, zone), `level`, `message`, `traceback`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one event as one line."""
        at = datetime.fromtimestamp(record.created, UTC)
        event = {
            "timestamp": at.isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
        }
        if record.exc_info:
            event["traceback"] = self.formatException(record.exc_info)
        return json.dumps(event)
