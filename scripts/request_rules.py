"""Generates the recording rules that combine users' waits from pools on several nodes.

`python -m scripts.request_rules > alerts/rules/disagg-recording-requests.yaml`
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from disagg_exporter.engine_pages.histograms import (
    FIRST_TOKEN_BOUNDS_SECONDS,
    PART_BOUNDS_SECONDS,
)
from disagg_exporter.serving.convolution import coefficients

WHOLE_BOUNDS_SECONDS = tuple(b for b in PART_BOUNDS_SECONDS if b in FIRST_TOKEN_BOUNDS_SECONDS)[2:]
"""Bounds of the whole: those that every source has, from a tenth of a second on."""

_OWNER = "cluster, model_name, engine_namespace"
_BY = f"({_OWNER}, le)"
_PARTS = "cluster_model_namespace_part:disagg_request_part_seconds_bucket:rate5m"
_SHARE = "cluster_model_namespace:disagg_prefill_wait:share5m"
_POOLS = "cluster_model_namespace:disagg_pools_time_to_first_token_seconds_bucket:rate5m"
_WHOLE = "cluster_model_namespace:disagg_request_time_to_first_token_seconds_bucket:rate5m"
_P95 = "cluster_model_namespace:disagg_request_time_to_first_token_seconds:p95_rate5m"
_CLUSTER = "cluster:disagg_request_time_to_first_token_seconds_bucket:rate5m"
_CLUSTER_P95 = "cluster:disagg_request_time_to_first_token_seconds:p95_rate5m"
_TOLD = "disagg_request_time_to_first_token_seconds_bucket"

_HEAD = f"""\
# Recording rules of users' waits. Written by `python -m scripts.request_rules` from the bounds of
# the exporter's histograms; change that, not this file.
#
# A node knows only its own engines. Where a request goes to a prefill and a decode engine on
# different nodes, no node observes the user's whole wait: each reports its part, and these rules
# combine them over all nodes, as a node with both pools does itself. The share of whole waits below
# a bound is the sum, over the buckets of prefill, of the share of prompts in it times the mean
# share of decode engines' waits below the rest; that is linear in the buckets, by the numbers below
# (exporter/disagg_exporter/serving/convolution.py).
groups:
  - name: disagg-requests
    rules:
      # The parts as measured by engines, over all nodes.
      - record: {_PARTS}
        expr: |
          sum by (cluster, model_name, engine_namespace, part, le) (
            rate(disagg_request_part_seconds_bucket[5m])
          )

      # Share of the prompts of 5m whose wait at a prefill engine was in the bucket below `le`.
"""

_TAIL = f"""
      # Users' wait for the first token, from the best source of a model that counts any now: its
      # frontends, its routers, or else the engines that observe whole requests together with the
      # pools above. A source that counts none is silent, or not on these users' path.
      - record: {_WHOLE}
        expr: |
          sum by {_BY} (rate({_TOLD}{{source="frontend",le=~"%(le)s"}}[5m]))
          and on ({_OWNER})
          sum by ({_OWNER}) (rate({_TOLD}{{source="frontend",le="+Inf"}}[5m])) > 0
          or
          sum by {_BY} (rate({_TOLD}{{source="router",le=~"%(le)s"}}[5m]))
          and on ({_OWNER})
          sum by ({_OWNER}) (rate({_TOLD}{{source="router",le="+Inf"}}[5m])) > 0
          or
          sum by {_BY} (
            label_replace(
              sum by {_BY} (rate({_TOLD}{{source="engine",le=~"%(le)s"}}[5m])),
              "source", "engine", "", ""
            )
            or
            label_replace({_POOLS}, "source", "pools", "", "")
          )
      # No requests, no value.
      - record: {_P95}
        expr: histogram_quantile(0.95, {_WHOLE}) >= 0

      # The same of all models of a cluster.
      - record: {_CLUSTER}
        expr: sum by (cluster, le) ({_WHOLE})
      - record: {_CLUSTER_P95}
        expr: histogram_quantile(0.95, {_CLUSTER}) >= 0
"""


def request_rules() -> str:
    """Return the whole file."""
    bounds = "|".join((*map(str, WHOLE_BOUNDS_SECONDS), "[+]Inf"))
    return "".join((_HEAD, *_shares(), *_wholes(), _TAIL % {"le": bounds}))


def _shares() -> Iterator[str]:
    below = ""
    for bound in PART_BOUNDS_SECONDS:
        prefill = f'{_PARTS}{{part="prefill",le="%s"}}'
        count = prefill % bound
        if below:
            count = f"({count} - ignoring (le) {prefill % below})"
        below = str(bound)
        yield _rule(_SHARE, bound, "part", f"{count}\n  / ignoring (le) ({prefill % '+Inf'} > 0)")


def _wholes() -> Iterator[str]:
    yield "\n      # First tokens per second of pools, by the time that users waited for them.\n"
    decode = f'{_PARTS}{{part="first_decode",le="%s"}}'
    matrices = coefficients(PART_BOUNDS_SECONDS, PART_BOUNDS_SECONDS, WHOLE_BOUNDS_SECONDS)
    for whole, matrix in zip(WHOLE_BOUNDS_SECONDS, matrices, strict=True):
        terms = []
        for bucket, weights in zip(PART_BOUNDS_SECONDS, matrix, strict=True):
            parts = [
                f"{weight:.6g} * {decode % bound}"
                for bound, weight in zip(PART_BOUNDS_SECONDS, weights, strict=True)
                if weight > 1e-9
            ]
            if parts:
                inner = "\n      + ignoring (le) ".join(parts)
                share = f'{_SHARE}{{le="{bucket}"}}'
                terms.append(f"{share}\n    * ignoring (le, part) (\n      {inner}\n    )")
        yield _rule(_POOLS, whole, "", "\n  + ignoring (le, part) ".join(terms))
    every = (
        f'{decode % "+Inf"}\n  and ignoring (le, part) {_SHARE}{{le="{PART_BOUNDS_SECONDS[0]}"}}'
    )
    yield _rule(_POOLS, "+Inf", "part", every)


def _rule(record: str, bound: float | str, dropped: str, expr: str) -> str:
    """Return the rule of one bound; a label that the value does not have is dropped."""
    if dropped:
        expr = f"sum without ({dropped}, le) (\n  " + expr.replace("\n", "\n  ") + "\n)"
    lines = "".join(f"          {line}\n" for line in expr.splitlines())
    labels = f'        labels: {{le: "{bound}"}}\n'
    return f"      - record: {record}\n        expr: |\n{lines}{labels}"


if __name__ == "__main__":
    sys.stdout.write(request_rules())
