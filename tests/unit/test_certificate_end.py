"""The end of a certificate: one limit, one rounding, one text."""

import pytest

from app.certificate_end import CertificateEnd
from app.log.state import DAY_MS

NOW_MS = 1_000 * DAY_MS


@pytest.mark.parametrize(
    ("left_ms", "is_reported", "text"),
    [
        (30 * DAY_MS + 1, False, "ends at 1972-10-27T00:00:00Z, in 30 days"),
        (30 * DAY_MS, True, "ends at 1972-10-27T00:00:00Z, in 30 days"),
        (30 * DAY_MS - 1, True, "ends at 1972-10-26T23:59:59Z, in 29 days"),
        (DAY_MS, True, "ends at 1972-09-28T00:00:00Z, in 1 day"),
        (1, True, "ends at 1972-09-27T00:00:00Z, in less than a day"),
        (0, True, "ended at 1972-09-27T00:00:00Z, connections with it are refused"),
        (-DAY_MS, True, "ended at 1972-09-26T00:00:00Z, connections with it are refused"),
    ],
)
def test_an_end_is_reported_from_thirty_days_before(left_ms: int, is_reported: bool, text: str) -> None:
    end = CertificateEnd(NOW_MS + left_ms, NOW_MS)
    assert (end.is_reported, str(end)) == (is_reported, text)
    assert end.is_over == (left_ms <= 0)


def test_a_certificate_that_has_not_begun_shows_a_wrong_clock() -> None:
    end = CertificateEnd(NOW_MS + 90 * DAY_MS, NOW_MS, NOW_MS + DAY_MS)
    assert (end.is_reported, end.is_refused, end.is_over) == (True, True, False)
    assert str(end) == "begins at 1972-09-28T00:00:00Z, connections with it are refused"
    assert end.advice == "compare the clock of this machine with the others"
    assert not CertificateEnd(NOW_MS + 90 * DAY_MS, NOW_MS, NOW_MS).is_reported
