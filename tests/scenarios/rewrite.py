"""`make scenarios-rewrite`: write what every transcript leads to now; then read the diff."""

import sys

from tests.scenarios.runner import replay, scenario_files


def main() -> int:
    for path in scenario_files():
        before = path.read_text()
        after = replay(before)
        if after != before:
            path.write_text(after)
            sys.stdout.write(f"{path.name} rewritten\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
