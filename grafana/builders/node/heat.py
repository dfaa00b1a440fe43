"""Row of the Node dashboard: all nodes of the cluster, each as a row of cells over time."""

from __future__ import annotations

from typing import Any

from grafana.builders.panels.board import UIDS, Row
from grafana.builders.panels.frame import HALF
from grafana.builders.panels.queries import Ask
from grafana.builders.panels.timelines import heat

EACH_WAY = 8
"""Number of busiest, and of least busy, nodes shown: more rows are not legible."""


def nodes() -> Row:
    """Nodes over time, coloured by how busy they are in each role."""
    return "Nodes over time", [
        _nodes(
            "How busy prefill nodes are",
            'role="prefill"',
            "{{node}}",
            "no prefill engine in these clusters",
        ),
        _nodes(
            "How busy decode and mixed nodes are",
            'role=~"decode|mixed"',
            "{{node}} {{role}}",
            "no decode or mixed engine in these clusters",
        ),
    ]


def _nodes(title: str, role: str, legend: str, none: str) -> Any:
    busy = f'node_role_model_gpu:disagg_occupancy:ratio_rate5m{{cluster=~"$cluster", {role}}}'
    # Ranked at the end of the time shown, so that all of it shows the same nodes.
    at_end = f"{busy} @ end()"
    chosen = f"topk({EACH_WAY}, {at_end}) or bottomk({EACH_WAY}, {at_end})"
    labels = "cluster, node, role, model_name, gpu_name"
    return heat(
        title,
        "Share of observed GPU time in which the node's GPUs of that role worked, 5 minutes: dark "
        "is idle, white works all the time. Good: rows alike. A dark row among bright ones gets "
        "no requests; a bright one among dark ones gets too many. The "
        f"{EACH_WAY} busiest and {EACH_WAY} least busy nodes at the end of the time shown. Click a "
        "cell for its node.",
        [Ask(f"max by (cluster, node, role) ({busy} and on ({labels}) ({chosen}))", legend)],
        link=(
            "Open this node",
            f"/d/{UIDS['node']}?var-node=${{__field.labels.node}}"
            "&var-cluster=${__field.labels.cluster}&${__url_time_range}",
        ),
        width=HALF,
        height=8,
        none=none,
        runbooks=("DisaggNodeOffMedian",),
    )
