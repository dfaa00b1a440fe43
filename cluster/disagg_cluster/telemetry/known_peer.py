"""An engine whose role needs no inference, beside which others are judged."""

from __future__ import annotations

from dataclasses import dataclass

from disagg_exporter.model import Role


@dataclass(frozen=True, slots=True)
class KnownPeer:
    """An engine whose role is known anyhow: one that we launched."""

    model_name: str
    role: Role
