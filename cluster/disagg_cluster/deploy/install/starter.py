"""The node file that a new node begins with: right as it is, with an example to fill in."""

from __future__ import annotations

import json

_STARTER = """\
# The node file; `disagg-node config check` explains what is wrong with it, docs/node-file.md what
# it may say.
node: {node}
{cluster}run_dir: /run/disagg-node
on_sigterm: leave # an upgrade or a restart of the daemon leaves the engines serving

# Engines that something else starts on this node are found and measured (docs/attach.md).
attach: {{}}

# Those that the daemon is to start itself:
# workers:
#   - name: prefill-0
#     role: prefill
#     gpus: [0, 1, 2, 3]
#     model: openai/gpt-oss-120b
#     port: 8100
#     python: /srv/vllm/bin/python
#     kv_transfer: {{connector: NixlConnector, side_channel_port: 5600}}
#   - name: decode-0
#     role: decode
#     gpus: [4, 5, 6, 7]
#     model: openai/gpt-oss-120b
#     port: 8200
#     python: /srv/vllm/bin/python
#     kv_transfer: {{connector: NixlConnector, side_channel_port: 5610}}
"""


def starter_text(node: str, cluster: str = "") -> str:
    """The text of a node file for a node of this name."""
    # What JSON quotes, YAML reads as the same text.
    named = f"cluster: {json.dumps(cluster)}\n" if cluster else ""
    return _STARTER.format(node=json.dumps(node), cluster=named)
