"""What an engine is for: markers in, a role with its reasons out."""

from disagg_exporter.roles.evidence.types import (
    NOT_AN_ENGINE,
    Confidence,
    Evidence,
    Markers,
    Peers,
    Traffic,
    Verdict,
)
from disagg_exporter.roles.judge import explain

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
