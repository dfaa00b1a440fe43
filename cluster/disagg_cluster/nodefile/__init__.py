"""The node file: from the text that a person wrote to a frozen configuration, or a report."""

from disagg_cluster.nodefile.oneworker import ELSEWHERE, THIS_HOST
from disagg_cluster.nodefile.reading import expected_devices, from_mapping, lines_of, load, parse

__all__ = [
    "ELSEWHERE",
    "THIS_HOST",
    "expected_devices",
    "from_mapping",
    "lines_of",
    "load",
    "parse",
]
