"""Selectors of the Capacity dashboard's queries: the chosen clusters and model."""

from __future__ import annotations

C = 'cluster=~"$cluster"'
M = f'{C}, model_name="$model"'
