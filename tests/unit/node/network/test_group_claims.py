"""Claims in a hello: what contradicts, and how versions without claims read the text."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.node.network import group_claims
from app.node.network.group_claims import GroupClaim, announce, announced
from app.node.network.peer_connections import HELLO_MAX_BYTES, Hello
from app.node.network.peer_transport import PROTOCOL

IDS = st.lists(st.sampled_from(["n1", "n2", "a.b-c_d"]), unique=True).map(tuple)
CLAIMS = st.dictionaries(
    st.from_regex(r"[a-z0-9][a-z0-9._-]{0,9}", fullmatch=True),
    st.builds(GroupClaim, mode=st.sampled_from(["raft", "classic"]), voters=IDS, is_named=st.booleans()),
    max_size=5,
)


def raft(*voters: str, is_named: bool = False) -> GroupClaim:
    return GroupClaim("raft", voters, is_named)


@given(CLAIMS, st.booleans())
def test_the_announced_text_is_read_as_it_was_written(
    claims: dict[str, GroupClaim], takes_appends: bool
) -> None:
    text = announce("1.2.3", claims, takes_appends=takes_appends)
    assert announced(text) == ("1.2.3", claims, takes_appends)


@pytest.mark.parametrize(
    "groups",
    [
        "{",
        "[]",
        '{"a": 1}',
        '{"a": ["raft", ["n1"]]}',
        "[" * 3_000,
        "\udcff",
        '{"a": ["raft", ["n1\\n"], true]}',
        '{"a": ["\\u001b[31m", [], true]}',
        f'{{"a": ["raft", ["{"n" * 65}"], true]}}',
    ],
)
def test_claims_that_cannot_be_read_count_as_none(groups: str) -> None:
    assert announced(f"1.2.3 groups:{groups} appends") == ("1.2.3", {}, True)


def test_earlier_versions_find_the_flag_of_appends_at_the_end_and_later_ones_need_no_claims() -> None:
    assert announce("1.2.3", {"a": raft("n1")}, takes_appends=True).endswith(" appends")
    assert announced("1.2.3 appends") == ("1.2.3", {}, True)
    assert announced("1.2.3") == ("1.2.3", {}, False)


@pytest.mark.parametrize("cluster", ["\U0001f600" * 128, "\x01" * 128])
@pytest.mark.parametrize("size", [1, 32])
def test_a_hello_with_the_claims_of_many_logs_is_not_too_long(cluster: str, size: int) -> None:
    """JSON within JSON: the shorter the ids, the more quotation marks are escaped."""
    voters = tuple(f"{k}" * size for k in range(7))
    names = ["__controller", *(f"{k}" + "x" * 4 * (size - 1) for k in range(500))]
    claims = {name: raft(*voters) for name in names}
    text = announce("1.2.3", claims, takes_appends=True)
    assert "__controller" in announced(text).claims
    place = "h" * 253 + ":65535"
    hello = Hello(PROTOCOL, cluster, "s" * 32, "t" * 32, place, text, ha_address=place)
    assert len(msgspec.json.encode(hello)) <= HELLO_MAX_BYTES


def test_a_hello_of_a_node_with_many_logs_encodes_no_more_than_it_carries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A node with 1,000 logs in its file spent 50 ms of its event loop for each hello."""
    encoded: list[object] = []
    encode = group_claims._json

    def counted(value: object) -> str:
        encoded.append(value)
        return encode(value)

    monkeypatch.setattr(group_claims, "_json", counted)
    claims = {f"orders-{k}": raft("n1", "n2", "n3") for k in range(1_000)}
    kept = announced(announce("1.2.3", claims, takes_appends=True)).claims
    assert list(kept) == list(claims)[: len(kept)]
    assert 40 <= len(kept) < 50
    assert len(encoded) < 3 * len(kept)


@pytest.mark.rule("R-10")
@pytest.mark.parametrize(
    ("one", "other", "excludes", "contradicts"),
    [
        (raft("n1"), raft("n2", "n3"), True, True),
        (raft("n1", is_named=True), raft("n2", "n3"), True, True),
        (raft("n1", is_named=True), raft("n2", is_named=True), True, True),
        (raft("n1", "n2"), raft("n1", "n2", "n3"), False, True),  # no first leader: they wait for one another
        (raft("n1", "n2", is_named=True), raft("n1", "n2", "n3"), False, False),  # n3 joins
        (raft("n1", "n2", is_named=True), raft("n2", "n3", is_named=True), False, False),  # one of them lags
        (raft("n1"), raft("n1"), False, False),
        (GroupClaim("controller", (), True), raft("n1"), True, True),
        (GroupClaim("controller", (), True), GroupClaim("controller", (), True), False, False),
        (GroupClaim("classic", ("n1",), True), GroupClaim("classic", ("n2",), True), True, True),
    ],
)
def test_which_groups_contradict_each_other(
    one: GroupClaim, other: GroupClaim, excludes: bool, contradicts: bool
) -> None:
    for first, second in ((one, other), (other, one)):
        assert (first.excludes(second), first.contradicts(second)) == (excludes, contradicts)
