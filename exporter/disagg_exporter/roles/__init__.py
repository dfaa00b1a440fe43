"""What an engine is for: markers in, a role with its reasons out."""

from disagg_exporter.roles.judge import explain
from disagg_exporter.roles.nouns import (
    NOT_AN_ENGINE,
    Confidence,
    Evidence,
    Markers,
    Peers,
    Traffic,
    Verdict,
)

__all__ = [
    "NOT_AN_ENGINE",
    "Confidence",
    "Evidence",
    "Markers",
    "Peers",
    "Traffic",
    "Verdict",
    "explain",
]
