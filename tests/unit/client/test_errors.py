"""Errors of the client in another process: a pool of processes pickles them."""

import pickle

import pytest

from app.client.errors import (
    ClientError,
    InvalidAnswer,
    NoAnswer,
    NoReplica,
    OtherLog,
    ProducerFailed,
    RecordRefused,
    Untrusted,
    problem_of,
)

_DOUBTFUL = problem_of(412, b'{"code": "index-mismatch", "outcome": "not_applied", "next_index": 4}', "2")
_DOUBTFUL.outcome = "unknown"


@pytest.mark.parametrize(
    "error",
    [
        ClientError("text"),
        NoAnswer("no answer", sent=True, refused=True),
        InvalidAnswer("damaged"),
        OtherLog("another log"),
        NoReplica([("http://a", NoAnswer("x", sent=False))], 30.0),
        Untrusted("certificate"),
        RecordRefused(5, 4),
        ProducerFailed(ClientError("first")),
        _DOUBTFUL,
        problem_of(502, b"<html>"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_is_the_same_after_pickling(error: ClientError) -> None:
    """A pool of processes waits permanently for a result whose error it cannot read."""
    found = pickle.loads(pickle.dumps(error))
    assert (type(found), str(found), found.outcome) == (type(error), str(error), error.outcome)
    assert found.__dict__.keys() == error.__dict__.keys()
    assert found.retryable == error.retryable
