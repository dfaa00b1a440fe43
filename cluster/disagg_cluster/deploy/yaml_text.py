"""Texts as YAML scalars."""

from __future__ import annotations

import json

from disagg_exporter.errors import escaped


def quoted(text: str) -> str:
    """Return a text as a double-quoted YAML scalar.

    JSON's own escapes are no YAML beyond U+FFFF, where they are two halves of a character; Python's
    are.
    """
    return escaped(json.dumps(text, ensure_ascii=False))
