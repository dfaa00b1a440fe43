"""Which versions of which engines have pages that we have read."""

from __future__ import annotations

KNOWN_VERSIONS = {
    "vllm": frozenset({"0.32.0", "0.33.0"}),
    "sglang": frozenset({"0.5.23"}),
    "dynamo": frozenset({"1.6.1"}),
}
"""Each has a page under tests/data/<engine>-<version>/, captured, or written after its source.

TensorRT-LLM is not in it: its page was read from a commit between two versions.
"""


def is_known(kind: str, version: str) -> bool:
    """Say whether what we read from such an engine's page was held against that very version.

    A build's suffix says where it was built, not what is on the page: 0.32.0+cpu is 0.32.0.
    """
    return version.partition("+")[0] in KNOWN_VERSIONS.get(kind, ())
