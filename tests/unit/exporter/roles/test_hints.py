"""The few relevant lines of a page, compared with the whole page."""

from __future__ import annotations

from pathlib import Path

import pytest

from disagg_exporter.roles.evidence.page import MAX_OF_A_SORT, MAX_OF_A_TOTAL, telling_lines
from disagg_exporter.roles.evidence.types import Markers
from disagg_exporter.roles.judge import explain

DATA = Path(__file__).parents[3] / "data"
PAGES = sorted(path for path in DATA.glob("*/*.prom"))


@pytest.mark.parametrize("path", PAGES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_selected_lines_give_the_same_verdict_as_the_whole_page(path: Path) -> None:
    page = path.read_bytes()
    few = telling_lines(page)

    assert explain(Markers(page=few)) == explain(Markers(page=tuple(page.decode().splitlines())))
    assert len(few) < 60


def test_the_traffic_of_many_ranks_is_read_whole() -> None:
    ended, computed = "request_success_total", "prompt_tokens_by_source_total"
    lines = [
        f'vllm:{name}{{engine="{rank}",{label}="{value}"}} {count}'
        for name, label, values in (
            (ended, "finished_reason", {"stop": 0, "length": 100, "abort": 0, "error": 0, "x": 0}),
            (computed, "source", {"local_compute": 1e6, "external_kv_transfer": 0}),
            ("generation_tokens_total", "model_name", {"m": 100}),
        )
        for rank in range(32)
        for value, count in values.items()
    ]
    few = telling_lines("\n".join(lines).encode())

    assert explain(Markers(page=few)) == explain(Markers(page=tuple(lines)))


def test_a_conflicting_label_on_a_single_line_is_found() -> None:
    lines = [f'sglang:x{{a="{n}",engine_type="prefill"}} 1' for n in range(5000)]
    lines[4000] = 'sglang:y{engine_type="decode"} 1'

    few = telling_lines("\n".join(lines).encode())

    assert explain(Markers(page=few)).role == "unknown"
    assert len(few) <= 3


@pytest.mark.parametrize(
    "page",
    [
        b"",
        b"\n\n\n",
        b'\xff\xfe engine_type="prefill"',
        b'engine_type="' + b"x" * 1_000_000,
        b"vllm:generation_tokens_total" * 100_000,
        b"".join(b'a{engine_type="%d"} 1\n' % n for n in range(50_000)),
        b"".join(b"vllm:generation_tokens_total %d\n" % n for n in range(50_000)),
    ],
)
def test_a_hostile_page_gives_few_lines(page: bytes) -> None:
    few = telling_lines(page)

    assert len(few) <= MAX_OF_A_SORT + MAX_OF_A_TOTAL
    assert sum(map(len, few)) < 200_000
    explain(Markers(page=few))
