"""The landing page in a real browser: its policy, its renewal, its keyboard, its two looks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace

import pytest
from playwright.sync_api import Browser, Page, expect

from disagg_exporter.http.listen import ListenAddress
from disagg_exporter.http.server.node_site import node_site
from disagg_exporter.http.server.server import MetricsServer
from disagg_exporter.landing.history import AccountHistory
from disagg_exporter.model import (
    Cell,
    Device,
    DeviceAccount,
    DeviceReading,
    EngineState,
    Reason,
    Role,
    Snapshot,
    Use,
)
from support.browser import CONTRAST, chromium
from support.snapshots import (
    FRESH_UNTIL_NS,
    GIVEN_UP,
    NOW_SECONDS,
    SECOND,
    TAKEN_NS,
    WALL_OFFSET_SECONDS,
    golden_snapshot,
    slice_ns,
)

HOSTILE = "<img src=x onerror=document.title='taken'><script>document.title='taken'</script>"

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as running:
        yield running


class Node:
    """A node whose snapshot a test swaps while its page is served."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.server = MetricsServer(
            ListenAddress("127.0.0.1", 0),
            node_site(
                lambda: self.snapshot,
                lambda: "",
                lambda: 0.0,
                lambda: TAKEN_NS,
                name="gpu-7",
                history=AccountHistory(),
            ),
        )
        self.url = ""


@contextlib.contextmanager
def shown(browser: Browser, snapshot: Snapshot, **settings: object) -> Iterator[tuple[Page, Node]]:
    """Open the page of a node; whatever the browser complains of fails the test."""
    node = Node(snapshot)
    complaints: list[str] = []
    node.url = f"http://127.0.0.1:{node.server.start().port}/"
    try:
        context = browser.new_context(**settings)  # type: ignore[arg-type] # of Playwright's many
        with contextlib.closing(context):
            page = context.new_page()
            page.on("console", lambda message: complaints.append(message.text))
            page.on("pageerror", lambda error: complaints.append(str(error)))
            page.clock.install()  # the page's own seconds pass when a test says so
            page.goto(node.url)
            yield page, node
        assert complaints == []
    finally:
        node.server.close()


ROUNDS_MS = 5000
"""Time enough for the page to renew itself twice."""


def slices(count: int) -> Snapshot:
    """A node of MIG slices with long names."""
    golden = golden_snapshot()
    devices = tuple(
        Device(f"MIG-{n}", n, "NVIDIA H100 80GB HBM3 MIG 1g.10gb", f"nvidia{n}", weight=1 / 7)
        for n in range(count)
    )
    cells = slice_ns(
        {Cell(Role.DECODE, Use.DECODE): 4.0, Cell(Role.DECODE, Use.IDLE, Reason.KV_WAIT): 4.0}
    )
    return replace(
        golden,
        devices=devices,
        accounts=tuple(
            DeviceAccount(d, Role.DECODE, TAKEN_NS - 56 * SECOND, TAKEN_NS, cells) for d in devices
        ),
        readings=tuple(DeviceReading(d.gpu, TAKEN_NS, 0.5, 1 << 30, 10 << 30) for d in devices),
        engines=tuple(
            replace(golden.engines[0], engine=f"llama-3-3-70b-decode-{d.index}", devices=(d.gpu,))
            for d in devices
        ),
    )


def test_the_page_refreshes_itself_and_keeps_the_focus(browser: Browser) -> None:
    with shown(browser, golden_snapshot()) as (page, node):
        expect(page.get_by_role("table").first).to_contain_text("prefill-0")
        scroll = page.get_by_role("region", name="GPUs").get_by_role("region")
        scroll.focus()
        node.snapshot = replace(
            node.snapshot,
            engines=(replace(node.snapshot.engines[0], engine="newcomer"),),
        )

        page.clock.run_for(ROUNDS_MS)
        expect(page.get_by_role("table").first).to_contain_text("newcomer", timeout=20_000)
        assert page.evaluate("document.activeElement.id") == "devices-scroll"


def test_a_screen_reader_announces_only_changes_in_the_number_of_problems(
    browser: Browser,
) -> None:
    golden = golden_snapshot()
    with shown(browser, golden) as (page, node):
        page.evaluate(
            "new MutationObserver(() => heard.push(live.textContent)).observe("
            "live, {childList: true}); window.heard = [];"
        )
        for day in (0, 1, 2):  # the engine that does not answer is gone, and comes back
            engines = golden.engines[: 1 if day == 1 else 2]
            offset = day * 86_400.0
            node.snapshot = replace(golden, engines=engines, wall_offset_seconds=offset)
            page.clock.run_for(ROUNDS_MS)
            expect(page.get_by_text(f"1970-01-0{day + 1}")).to_be_visible(timeout=20_000)

        assert page.evaluate("heard") == ["(4) gpu-7", "(5) gpu-7"]


def test_the_refresh_can_be_paused(browser: Browser) -> None:
    with shown(browser, golden_snapshot()) as (page, node):
        button = page.get_by_role("button", name="Pause")
        button.focus()
        page.keyboard.press("Enter")
        expect(button).to_have_attribute("aria-pressed", "true")
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.clock.run_for(ROUNDS_MS)
        assert asked == []

        node.snapshot = replace(node.snapshot, engines=())
        page.keyboard.press("Enter")
        page.clock.run_for(ROUNDS_MS)
        expect(page.get_by_text("None is known.")).to_be_visible(timeout=20_000)


def test_the_page_reports_a_node_that_no_longer_answers(browser: Browser) -> None:
    node = Node(golden_snapshot())
    url = f"http://127.0.0.1:{node.server.start().port}/"
    page = browser.new_page()
    with contextlib.closing(page):
        page.clock.install()
        page.goto(url)
        node.server.close()
        page.clock.run_for(ROUNDS_MS)

        expect(page.get_by_role("status")).to_contain_text("does not answer", timeout=20_000)


def test_a_hostile_name_is_shown_as_text_before_and_after_a_refresh(browser: Browser) -> None:
    golden = golden_snapshot()
    hostile = replace(golden.engines[0], engine=HOSTILE, model_name=HOSTILE, up=False)
    with shown(browser, replace(golden, engines=(hostile,))) as (page, node):
        expect(page.get_by_role("table").first).to_contain_text(HOSTILE)
        node.snapshot = replace(golden, engines=(replace(hostile, version="after"),))
        page.clock.run_for(ROUNDS_MS)
        expect(page.get_by_role("table").nth(1)).to_contain_text("after", timeout=20_000)

        assert page.locator("main img, main script").count() == 0
        assert "taken" not in page.title()


def test_the_page_works_without_scripts_and_reloads_itself(browser: Browser) -> None:
    with shown(browser, golden_snapshot(), java_script_enabled=False) as (page, _):
        expect(page.get_by_role("table").first).to_contain_text("prefill-0")
        expect(page.get_by_role("button")).to_have_count(0)
        assert '<noscript><meta http-equiv="refresh"' in page.content()


def test_headings_tables_and_their_headers_are_accessible(browser: Browser) -> None:
    with shown(browser, golden_snapshot()) as (page, _):
        headings = page.get_by_role("heading").all_inner_texts()
        assert headings[0].startswith("gpu-7")
        assert headings[1:] == [
            *("What is wrong", "Pools", "The node", "The last hour", "GPUs", "Engines", "More")
        ]
        table = page.get_by_role("table").first
        assert table.get_by_role("columnheader").all_inner_texts() == [
            *("GPU", "Role", "Engine", "What it did", "Occupancy", "Memory", "Power")
        ]
        assert table.get_by_role("rowheader").count() == 3
        assert table.get_by_role("cell", name="prefill 64%, decode 2%").count() == 1


def test_the_keyboard_reaches_all_controls_in_page_order(browser: Browser) -> None:
    with shown(browser, golden_snapshot()) as (page, _):
        reached = []
        for _press in range(7):
            page.keyboard.press("Tab")
            reached.append(page.evaluate("(e => e.id || e.textContent)(document.activeElement)"))

        assert reached == [
            *("Skip to the GPUs", "pause", "devices-scroll", "engines-scroll"),
            *("/metrics", "/healthz", "/readyz"),
        ]


def test_every_text_has_enough_contrast(browser: Browser) -> None:
    with shown(browser, golden_snapshot()) as (page, _):
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            assert page.evaluate(CONTRAST) == []


def in_trouble() -> dict[str, tuple[Snapshot, tuple[str, ...]]]:
    """By state, a node that is in it and what its page must say."""
    golden = golden_snapshot()
    engine, *others = golden.engines
    gone = replace(engine, state=EngineState.GONE, up=None)
    last_lines = ("Loading weights: 45 %", "torch.OutOfMemoryError: CUDA out of memory")
    failed = replace(GIVEN_UP, last_lines=last_lines)
    crashed = replace(failed, state="backoff", next_start_timestamp_seconds=NOW_SECONDS + 8)
    left = replace(golden, engines=(gone, *others))
    return {
        "crash": (
            replace(left, workers=(crashed, *golden.workers[1:])),
            ("waits to be started again", "signal 9 (Killed)", "CUDA out of memory", "backoff"),
        ),
        "failed": (
            replace(left, workers=(failed, *golden.workers[1:])),
            ("was given up", "signal 9 (Killed)", "CUDA out of memory", "failed"),
        ),
        "empty": (
            Snapshot(TAKEN_NS, WALL_OFFSET_SECONDS, FRESH_UNTIL_NS),
            ("Nothing runs here", "Nothing was attributed yet", "of 0 GPUs"),
        ),
    }


@pytest.mark.parametrize("state", ["crash", "failed", "empty"])
def test_problems_are_visible_first_on_any_screen_size(browser: Browser, state: str) -> None:
    snapshot, words = in_trouble()[state]
    with shown(browser, snapshot) as (page, _):
        for word in words:
            expect(page.get_by_text(word).first).to_be_visible()
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            assert page.evaluate(CONTRAST) == []
        for width in (360, 1440):
            page.set_viewport_size({"width": width, "height": 800})
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            told = page.get_by_text(words[0]).first.bounding_box()
            assert told is not None
            assert told["y"] < 800


def test_sixteen_gpu_slices_fit_any_screen_size(browser: Browser) -> None:
    """A table may scroll in its own box; the page may not."""
    with shown(browser, slices(16)) as (page, _):
        assert page.get_by_role("table").first.get_by_role("row").count() == 17
        for width in (360, 768, 1440):
            page.set_viewport_size({"width": width, "height": 800})
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            bar = page.locator("table.devices svg.bar").first.bounding_box()
            assert bar is not None
            assert bar["width"] >= 100
