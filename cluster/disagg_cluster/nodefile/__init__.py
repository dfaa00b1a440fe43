"""The node file: from its text to a frozen configuration, or a report of its problems."""

from disagg_cluster.nodefile.reading import (
    ELSEWHERE,
    THIS_HOST,
    NodeFile,
    expected_devices,
    from_mapping,
    load,
    parse,
    read,
)

__all__ = [
    "ELSEWHERE",
    "THIS_HOST",
    "NodeFile",
    "expected_devices",
    "from_mapping",
    "load",
    "parse",
    "read",
]
