"""The pages outside docs/, which the site's strict build does not check, and the site's order."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "helm/disagg-node/README.md")
_FOLDERS = "alerts|bench|cluster|examples|exporter|grafana|scripts|tests"
_PATH = re.compile(rf"`((?:{_FOLDERS})/[^`*…\s]+)`")
_LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)")


def _anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub gives to a page's headings."""
    heads = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def _leads_somewhere(link: str, anchor: str, page: Path) -> bool:
    target = (page.parent / link).resolve() if link else page
    return target.exists() and (not anchor or target.suffix != ".md" or anchor in _anchors(target))


@pytest.mark.parametrize("name", PAGES)
def test_every_link_of_a_page_outside_the_site_has_a_target(name: str) -> None:
    page = ROOT / name
    links = _LINK.findall(page.read_text(encoding="utf-8"))

    astray = [
        (link, anchor)
        for link, anchor in links
        if not link.startswith(("http:", "https:")) and not _leads_somewhere(link, anchor, page)
    ]

    assert astray == []


def test_every_file_named_by_a_page_exists() -> None:
    """Paths in pages follow the code when it moves. Benchmarks write `bench/out`."""
    pages = [*(ROOT / "docs").rglob("*.md"), *(ROOT / name for name in PAGES)]
    named = {path for page in pages for path in _PATH.findall(page.read_text(encoding="utf-8"))}

    gone = {path for path in named if not (ROOT / path).exists()}
    assert {path for path in gone if not path.startswith("bench/out/")} == set()


def test_every_row_of_a_dashboard_named_by_a_runbook_exists() -> None:
    pages = (ROOT / "docs" / "runbooks").glob("*.md")
    texts = [page.read_text(encoding="utf-8") for page in pages]
    named = {found for text in texts for found in re.findall(r"\*(\w+)\* \(row \*(.+?)\*\)", text)}
    rows = {
        (path.stem.capitalize(), panel["title"])
        for path in (ROOT / "grafana" / "dashboards").glob("*.json")
        for panel in json.loads(path.read_text(encoding="utf-8"))["panels"]
        if panel["type"] == "row"
    }

    assert named
    assert named <= rows


def test_every_variable_that_a_user_may_set_is_on_a_page() -> None:
    sources = [*(ROOT / "exporter").rglob("*.py"), *(ROOT / "cluster").rglob("*.py")]
    read = {
        name
        for path in sources
        for name in re.findall(r'"(DISAGG_[A-Z_]+)"', path.read_text(encoding="utf-8"))
    }
    pages = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs").rglob("*.md"))

    assert "DISAGG_STEPS_SOCKET" in read
    # Set by the daemon, for its own workers.
    assert {name for name in read if name not in pages} == {"DISAGG_NODE_WORKER"}


def test_a_runbook_that_tells_to_drain_or_to_move_says_how() -> None:
    told = re.compile(r"[Dd]rain it\b|[Mm]ove an? (node|engine)|[Ss]top the worker")
    bare = [
        (page.stem, " ".join(item.split()))
        for page in (ROOT / "docs" / "runbooks").glob("Disagg*.md")
        for item in page.read_text(encoding="utf-8")
        .partition("\n## Do\n")[2]
        .partition("\n## ")[0]
        .split("\n* ")
        if told.search(item) and not re.search(r"`disagg-node |`kubectl |causes/index\.md#", item)
    ]

    assert bare == []


@pytest.mark.parametrize(
    ("action", "commands"),
    [
        ("route_away", ("drain WORKER", "resume WORKER")),
        ("set_max_num_batched_tokens", ("reload", "restart WORKER")),
        ("move_worker", ("reassign WORKER --role ROLE",)),
        ("replace_gpu", ("config check", "restart WORKER")),
    ],
)
def test_an_action_on_a_launched_engine_names_the_command_that_takes_it(
    action: str, commands: tuple[str, ...]
) -> None:
    text = (ROOT / "docs" / "causes" / "index.md").read_text(encoding="utf-8")
    section = text.partition(f"\n### {action}\n")[2].partition("\n### ")[0]
    launched = section.partition("**Launched by us")[2].partition("\n* **")[0]

    assert [each for each in commands if f"disagg-node {each}" not in launched] == []


def test_the_files_named_by_the_architecture_page_exist() -> None:
    """Tables of docs/architecture.md: rooms (`E/…`, `C/…`) and the files in them."""
    packages = {"E": ROOT / "exporter/disagg_exporter", "C": ROOT / "cluster/disagg_cluster"}
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    gone = {
        path
        for path in re.findall(r"`([EC]/[^`]+)`", text)
        if not (packages[path[0]] / path[2:]).exists()
    }
    for rooms, files in re.findall(r"^\| (`[EC]/[^|]+) \| ([^|]+) \|", text, re.MULTILINE):
        folders = [packages[room[0]] / room[2:] for room in re.findall(r"`([^`]+)`", rooms)]
        gone |= {
            name
            for name in re.findall(r"`([^`]+\.py)`", files)
            if name[1] != "/" and not any((folder / name).exists() for folder in folders)
        }

    assert gone == set()


def test_the_table_of_rules_lists_every_file_of_rules() -> None:
    text = (ROOT / "docs" / "prometheus.md").read_text(encoding="utf-8")

    listed = re.findall(r"^\| `(disagg-[\w-]+\.yaml)` \|", text, re.MULTILINE)

    assert sorted(listed) == sorted(path.name for path in (ROOT / "alerts/rules").glob("*.yaml"))


def test_decisions_are_numbered_without_gaps_or_duplicates() -> None:
    records = sorted((ROOT / "docs" / "decisions").glob("0*.md"))

    assert [int(path.name[:4]) for path in records] == list(range(1, len(records) + 1))


def test_every_page_is_at_most_two_links_from_the_first_page() -> None:
    """Every page is linked from the first page or from a page that is; runbooks by their index."""
    docs = ROOT / "docs"

    def linked(page: Path) -> set[Path]:
        links = (link for link, _ in _LINK.findall(page.read_text(encoding="utf-8")))
        return {(page.parent / link).resolve() for link in links if link.endswith(".md")}

    first = {docs / "index.md"} | linked(docs / "index.md")
    second = first.union(*(linked(page) for page in first))

    assert set(docs.rglob("*.md")) - second == set()
