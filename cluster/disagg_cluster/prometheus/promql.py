"""Parts of PromQL expressions; pure."""

import re
from collections.abc import Iterable


def matcher(label: str, value: str) -> str:
    """Return a label matcher of a selector, for any value."""
    quoted = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'{label}="{quoted}"'


def any_matcher(label: str, values: Iterable[str]) -> str:
    """Return a label matcher of a selector, for any of some values."""
    return matcher(label, "|".join(map(re.escape, values))).replace("=", "=~", 1)
