"""What the commands of a node parse from its page."""

from __future__ import annotations

from pathlib import Path

from disagg_cluster.inspect.page_view import read_node_page

PAGE = b"""\
disagg_build_info{version="1.0"} 1.0
disagg_left_out_engines 3.0
disagg_engine_info{engine="a",role="decode",model_name="m",kind="vllm",version="1"} 1.0
disagg_engine_info{engine="b",role="decode",model_name="m",kind="vllm",version="1"} 1.0
disagg_engine_tls_info{engine="a",verified="pinned",fault="certificate_expired"} 1.0
"""
GOLDEN = Path(__file__).parents[3] / "data" / "golden_page.prom"


def test_tls_verification_and_left_out_engines_are_parsed() -> None:
    page = read_node_page(PAGE)

    assert page.left_out_engines == 3
    assert [(e.engine, e.verified, e.tls_fault) for e in page.engines] == [
        ("a", "pinned", "certificate_expired"),
        ("b", "", ""),
    ]


def test_an_engine_that_is_accounted_on_the_cpu_is_told_from_one_with_gpus() -> None:
    lines = (
        b'disagg_gpu_info{gpu="GPU-a",device="nvidia0"} 1.0',
        b'disagg_gpu_info{gpu="cpu-b",device="cpu"} 1.0',
        b'disagg_gpu_assignment_info{engine="a",gpu="GPU-a"} 1.0',
        b'disagg_gpu_assignment_info{engine="b",gpu="cpu-b"} 1.0',
    )

    page = read_node_page(PAGE + b"\n".join(lines) + b"\n")

    assert [(e.engine, e.on_cpu) for e in page.engines] == [("a", False), ("b", True)]


def test_without_these_series_no_engine_is_left_out() -> None:
    said = (b"disagg_left_out_engines", b"disagg_engine_tls_info")
    lines = GOLDEN.read_bytes().splitlines(keepends=True)

    page = read_node_page(b"".join(line for line in lines if not line.startswith(said)))

    assert page.left_out_engines == 0
    assert {engine.tls_fault for engine in page.engines} == {""}
