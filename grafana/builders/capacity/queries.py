"""Selectors of the Capacity dashboard's queries: the chosen cluster, model and namespace."""

from __future__ import annotations

LOAD = "cluster_model_namespace:disagg_phase_tokens:rate1m"
C = 'cluster="$cluster"'
M = f'{C}, model_name="$model", engine_namespace="$namespace"'
"""One of each: a sum of quantiles is not a quantile of the sum."""
