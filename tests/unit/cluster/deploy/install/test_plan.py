from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagg_cluster.deploy.install.plan import Action, DesiredFile, digest, manifest, plan

UNIT, NODE = Path("/x/unit"), Path("/x/node.yaml")


def action(there: str | None, wanted: str, written: str | None = None, force: bool = False) -> str:
    """Return what happens to one file of ours."""
    found = {} if there is None else {UNIT: there}
    ours = {} if written is None else {str(UNIT): digest(written)}
    (step,) = plan([DesiredFile(UNIT, wanted)], found, ours, force=force)
    return step.action.value


@pytest.mark.parametrize(
    ("there", "wanted", "written", "force", "expected"),
    [
        (None, "new", None, False, "create"),
        (None, "new", "old", False, "create"),
        ("new", "new", None, False, "same"),
        ("old", "new", "old", False, "update"),
        ("theirs", "new", "old", False, "keep"),
        ("theirs", "new", None, False, "keep"),
        ("theirs", "new", "old", True, "replace"),
        (b"\xe4".decode(errors="surrogateescape"), "new", "old", False, "keep"),
        ("old", "new", "old", True, "update"),
    ],
)
def test_a_file_is_written_unless_it_was_changed_by_hand(
    there: str | None, wanted: str, written: str | None, force: bool, expected: str
) -> None:
    assert action(there, wanted, written, force) == expected


@pytest.mark.parametrize("force", [False, True])
def test_a_file_to_be_filled_in_is_written_once_and_then_never(force: bool) -> None:
    starter = DesiredFile(NODE, "starter", theirs=True)

    (first,) = plan([starter], {}, {}, force=force)
    (later,) = plan([starter], {NODE: "filled in"}, {str(NODE): digest("starter")}, force=force)

    assert first.action is Action.CREATE
    assert (later.action, later.text, later.why) == (Action.SAME, "filled in", "is yours")


def test_the_diff_is_in_unified_format() -> None:
    (step,) = plan([DesiredFile(UNIT, "a\nc\n")], {UNIT: "a\nb"}, {}, force=True)

    assert step.diff == "--- /x/unit\n+++ /x/unit\n@@ -1,2 +1,2 @@\n a\n-b\n+c\n"


def test_obsolete_files_are_reported_and_left() -> None:
    old = {"/x/old": digest("old"), "/x/gone": digest("gone")}

    steps = plan([DesiredFile(UNIT, "new")], {Path("/x/old"): "old"}, old)

    assert [(step.action, str(step.path)) for step in steps] == [
        (Action.CREATE, "/x/unit"),
        (Action.LEFT, "/x/old"),
    ]
    assert not Action.LEFT.writes


texts = st.text(alphabet="ab\n", max_size=6)


@given(
    st.dictionaries(st.sampled_from("uvw"), texts), st.dictionaries(st.sampled_from("uvw"), texts)
)
def test_a_repeated_installation_changes_nothing(
    wanted: dict[str, str], there: dict[str, str]
) -> None:
    files = [DesiredFile(Path(name), text) for name, text in wanted.items()]
    found = {Path(name): text for name, text in there.items()}
    first = plan(files, found, {})
    after = found | {step.path: step.text for step in first if step.action.writes}

    second = plan(files, after, manifest(first, {}))

    assert not any(step.action.writes for step in second)
    kept = {step.path for step in first if step.action is Action.KEEP}
    assert {path: after[path] for path in kept} == {path: found[path] for path in kept}


@given(texts, texts, texts)
def test_unchanged_files_of_ours_are_updated(old: str, new: str, third: str) -> None:
    written: dict[str, str] = {}
    there: dict[Path, str] = {}
    for text in (old, new, third):
        (step,) = plan([DesiredFile(UNIT, text)], there, written)
        assert step.action in (Action.CREATE, Action.UPDATE, Action.SAME)
        written, there = manifest([step], written), {UNIT: step.text}
        assert there[UNIT] == text
