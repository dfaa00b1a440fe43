"""The node file: from the text that a person wrote to a frozen configuration, or a report."""

from disagg_cluster.nodefile.reading import (
    NodeFile,
    expected_devices,
    from_mapping,
    load,
    parse,
    read,
)
from disagg_cluster.nodefile.worker_checks import ELSEWHERE, THIS_HOST

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
