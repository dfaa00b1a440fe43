"""Selectors of the Capacity dashboard's queries: the chosen cluster, model and namespace."""

from __future__ import annotations

LOAD = "cluster_model_namespace:disagg_phase_tokens:rate1m"
C = 'cluster="$cluster"'
M = f'{C}, model_name="$model", engine_namespace="$namespace"'
"""One of each: a sum of quantiles is not a quantile of the sum."""


def in_order(expr: str, of: str) -> str:
    """`expr` with a label `order` by which its rows sort: by role or phase, then by horizon.

    As text, 15m and 1h come before 5m: minutes and hours get a letter, and two digits each.
    """
    for letter, unit in zip("ab", "mh", strict=True):
        for digits, shown in (("[0-9]", "0$1"), ("[0-9]{2}", "$1")):
            expr = (
                f'label_replace({expr}, "order", "{letter}{shown}", "horizon", "({digits}){unit}")'
            )
    return f'label_join({expr}, "order", " ", "{of}", "order")'
