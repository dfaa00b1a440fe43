"""A router gets the engines that are desired, loses ours that are not, and keeps all others."""

from hypothesis import given
from hypothesis import strategies as st

from disagg_cluster.switching.members import Member, membership_changes
from disagg_exporter.model import Role

urls = st.sampled_from(["a", "b", "c", "theirs"])
roles = st.sampled_from([Role.PREFILL, Role.DECODE])
OURS = {"a", "b", "c"}


def test_a_member_with_a_changed_role_leaves_and_joins() -> None:
    desired = [Member("a", Role.DECODE, "m"), Member("b", Role.DECODE, "m")]

    changes = membership_changes(
        desired, OURS, {"a": Role.PREFILL, "b": Role.DECODE, "theirs": Role.DECODE}
    )

    assert (changes.leave, changes.join) == (("a",), (desired[0],))


@given(
    desired=st.dictionaries(st.sampled_from(sorted(OURS)), roles),
    present=st.dictionaries(urls, roles),
)
def test_applied_membership_changes_leave_no_further_changes(
    desired: dict[str, Role], present: dict[str, Role]
) -> None:
    members = [Member(url, role, "m") for url, role in desired.items()]
    changes = membership_changes(members, OURS, present)
    after = {url: role for url, role in present.items() if url not in changes.leave}
    after |= {member.url: member.role for member in changes.join}

    assert not any((found := membership_changes(members, OURS, after)).leave + found.join)
    assert {url: role for url, role in after.items() if url in OURS} == desired
    assert after.get("theirs") == present.get("theirs")
