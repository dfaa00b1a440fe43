"""When the lines of an engine's log were written, by the times in them.

Pure. vLLM writes `INFO 11-23 10:05:01`, SGLang and most others `2026-11-23 10:05:01` or with a T;
all in the machine's time zone unless they state another.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta

_WHOLE = re.compile(r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:[.,]\d+)?(Z|[+-]\d\d:?\d\d)?")
_WITHOUT_YEAR = re.compile(r"\b[A-Z]{4,8} (\d\d)-(\d\d) (\d\d:\d\d:\d\d)")
_LOOKED_AT_CHARACTERS = 160
_A_DAY = timedelta(days=1)


def written_at(line: str, now: datetime) -> datetime | None:
    """Return when a line was written; None if it does not say.

    Args:
        line: One line.
        now: The present, in the zone of times without one; a time without a year is the last such
            before tomorrow.
    """
    head = line[:_LOOKED_AT_CHARACTERS]
    found, short = _WHOLE.search(head), _WITHOUT_YEAR.search(head)
    if found and short and short.start() < found.start():
        found = None  # the other one is in the message
    try:
        if found:
            at = datetime.fromisoformat(f"{found[1]}T{found[2]}{found[3] or ''}")
            return at if at.tzinfo else at.replace(tzinfo=now.tzinfo)
        if short:
            text = f"{now.year}-{short[1]}-{short[2]}T{short[3]}"
            at = datetime.fromisoformat(text).replace(tzinfo=now.tzinfo)
            return at if at <= now + _A_DAY else at.replace(year=now.year - 1)
    except ValueError:
        return None
    return None
