"""`make rules`: which rules of app/RULES.md does no test prove yet?"""

import contextlib
import io
import re
import sys
from collections import Counter
from pathlib import Path

import pytest

RULES = Path(__file__).parent.parent / "app" / "RULES.md"


def read_rules() -> dict[str, str]:
    """The rules by number, in the order of the page."""
    return dict(re.findall(r"^- \*\*([A-Z]-\d\d)\*\* (.+)$", RULES.read_text(), flags=re.MULTILINE))


class ProofCounter:
    """A pytest plugin that counts the tests that prove each rule, without running them."""

    def __init__(self) -> None:
        self.proofs: Counter[str] = Counter()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            self.proofs.update({number for marker in item.iter_markers("rule") for number in marker.args})


def main() -> int:
    """Print each rule without a proof, then a count. Exit code 1 only when the tests cannot be collected."""
    counter = ProofCounter()
    with contextlib.redirect_stdout(io.StringIO()) as listing:
        code = pytest.main(["--collect-only", "-qq"], plugins=[counter])
    if code != pytest.ExitCode.OK:
        sys.stderr.write(listing.getvalue())
        return 1
    rules = read_rules()
    unproved = [number for number in rules if not counter.proofs[number]]
    for number in unproved:
        sys.stdout.write(f"{number}  {rules[number]}\n")
    sys.stdout.write(f"{len(rules) - len(unproved)} of {len(rules)} rules have a test that proves them\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
