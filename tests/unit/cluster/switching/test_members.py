"""A router gets the engines that are wanted, loses ours that are not, and keeps all others."""

from hypothesis import given
from hypothesis import strategies as st

from disagg_cluster.switching.members import Member, changes_of
from disagg_exporter.model import Role

urls = st.sampled_from(["a", "b", "c", "theirs"])
roles = st.sampled_from([Role.PREFILL, Role.DECODE])
OURS = {"a", "b", "c"}


def test_one_that_changed_its_role_leaves_and_joins() -> None:
    wanted = [Member("a", Role.DECODE, "m"), Member("b", Role.DECODE, "m")]

    changes = changes_of(wanted, OURS, {"a": Role.PREFILL, "b": Role.DECODE, "theirs": Role.DECODE})

    assert (changes.leave, changes.join) == (("a",), (wanted[0],))


@given(
    wanted=st.dictionaries(st.sampled_from(sorted(OURS)), roles),
    present=st.dictionaries(urls, roles),
)
def test_after_the_changes_nothing_is_to_be_changed(
    wanted: dict[str, Role], present: dict[str, Role]
) -> None:
    members = [Member(url, role, "m") for url, role in wanted.items()]
    changes = changes_of(members, OURS, present)
    after = {url: role for url, role in present.items() if url not in changes.leave}
    after |= {member.url: member.role for member in changes.join}

    assert not any((found := changes_of(members, OURS, after)).leave + found.join)
    assert {url: role for url, role in after.items() if url in OURS} == wanted
    assert after.get("theirs") == present.get("theirs")
