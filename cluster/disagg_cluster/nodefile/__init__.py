"""The node file: from the text that a person wrote to a frozen configuration, or a report."""

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
