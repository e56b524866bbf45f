"""Answers of appends that entered the log as one. PURE.

The answer to the whole is rendered once; what differs between the members is filled in: indexes, count,
length and request id. Each answer has the bytes that the append alone would get.
"""

from typing import Final

from app.api.http.messages import REQUEST_ID, Response

_LENGTH: Final = b"content-length"
_VARYING: Final = {_LENGTH: b"%d", REQUEST_ID: b"%b"}  # in this order
_FIRST, _TERM = b'"first_index":', b',"term":'


class GroupAnswers:
    """The answers of one group, made of the answer to its records.

    headers: those that all members have. first_index: of the group.
    """

    __slots__ = ("_body", "_lines", "first_index", "headers", "status")

    def __init__(self, whole: Response) -> None:
        self.status = whole.status
        self.headers = tuple(each for each in whole.headers if each[0] not in _VARYING)
        self._lines = b"".join(
            [b"%b: %b\r\n" % (name, _VARYING.get(name) or _literal(value)) for name, value in whole.headers]
        )
        before, _, rest = whole.body.partition(_FIRST)
        indexes, _, behind = rest.partition(_TERM)
        self.first_index = int(indexes[: indexes.index(b",")])
        self._body = b'%b%b%%d,"last_index":%%d,"count":%%d%b%b' % (
            _literal(before), _FIRST, _TERM, _literal(behind),
        )  # fmt: skip

    def body(self, first_index: int, count: int) -> bytes:
        """Return the body of the member whose records begin at first_index."""
        return self._body % (first_index, first_index + count - 1, count)

    def lines(self, size_bytes: int, request_id: bytes) -> bytes:
        """Return the header lines of a member. size_bytes: of its body."""
        return self._lines % (size_bytes, request_id)


def _literal(text: bytes) -> bytes:
    return text.replace(b"%", b"%%")
