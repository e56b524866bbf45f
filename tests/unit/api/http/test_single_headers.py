"""Headers of one value that a request gives twice."""

import pytest

from app.api.http.single_headers import check_single_headers
from app.errors import InvalidRequest

ONE_VALUE = (
    b"authorization", b"commitlog-key", b"commitlog-min-index", b"commitlog-no-forward",
    b"commitlog-timestamp", b"content-encoding", b"content-type", b"idempotency-key",
    b"if-match", b"if-none-match", b"last-event-id",
)  # fmt: skip


@pytest.mark.parametrize("name", ONE_VALUE)
def test_a_header_of_one_value_may_not_occur_twice(name: bytes) -> None:
    check_single_headers([(name, b"a"), (b"accept", b"b")])
    with pytest.raises(InvalidRequest) as refused:
        check_single_headers([(name, b"a"), (b"host", b"x"), (name, b"a")])
    pointer = refused.value.errors[0]["pointer"]
    assert (pointer.lower(), refused.value.errors[0]["detail"]) == (
        f"/headers/{name.decode()}",
        "given twice",
    )


def test_other_headers_may_occur_several_times() -> None:
    check_single_headers([(b"accept", b"a"), (b"accept", b"b"), (b"x-forwarded-for", b"c")] * 2)
