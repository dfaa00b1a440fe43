"""docs/node-file.md, held against the node file that we understand."""

from __future__ import annotations

import re
from enum import Enum
from pathlib import Path

import pytest
from pydantic.fields import FieldInfo

from disagg_cluster.config import (
    Attach,
    Bridges,
    Dcgm,
    Deadlines,
    EngineTls,
    FailureHook,
    Frontend,
    GpuPriceConfig,
    HealthProbes,
    IntervalsConfig,
    KvTransfer,
    Latency,
    ListedEngine,
    Listen,
    NodeConfig,
    Restart,
    Router,
    Section,
    Worker,
)
from disagg_cluster.config.control import Control, GrpcConfig

PAGE = (Path(__file__).parents[4] / "docs" / "node-file.md").read_text(encoding="utf-8")
SECTIONS: dict[str, type[Section]] = {
    "The file": NodeConfig,
    "`workers`": Worker,
    "`workers[].kv_transfer`": KvTransfer,
    "`workers[].deadlines`": Deadlines,
    "`router`": Router,
    "`attach`": Attach,
    "`attach.endpoints[]`": ListedEngine,
    "`tls`": EngineTls,
    "`health`": HealthProbes,
    "`restart`": Restart,
    "`listen`": Listen,
    "`control`": Control,
    "`control.grpc`": GrpcConfig,
    "`intervals`": IntervalsConfig,
    "`latency`": Latency,
    "`dcgm`": Dcgm,
    "`on_worker_failure`": FailureHook,
    "`gpu_price`": GpuPriceConfig,
    "`frontends[]`": Frontend,
    "`bridges`": Bridges,
}


def table(title: str) -> dict[str, str]:
    """The keys below a heading of the page, with their defaults."""
    below = re.split(r"^##+ ", PAGE.split(f"# {title}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]
    return dict(re.findall(r"^\| `(\w+)` \| (.*?) ?\| ", below, flags=re.MULTILINE))


def default_text(field: FieldInfo) -> str | None:
    """How a default is written on the page; None where it takes more words."""
    if field.is_required():
        return "required"
    default = field.default.value if isinstance(field.default, Enum) else field.default
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, str | int | float) and default != "":
        return f"{default:g}" if isinstance(default, float) else str(default)
    return None


@pytest.mark.parametrize("title", SECTIONS)
def test_the_page_has_every_key_with_its_default(title: str) -> None:
    told, fields = table(title), SECTIONS[title].model_fields

    assert list(told) == list(fields)
    known = {key: text for key, field in fields.items() if (text := default_text(field))}
    assert {key: told[key] for key in known} == known
