"""The groups of tests that each process of `make test` takes, in their order (tests/conftest.py)."""

from tests.conftest import SPARKS, next_scope, scope_of

OF_SESSION = ("tests/spark/a.py", "tests/spark/b.py", "tests/spark/c.py")
REST = ("tests/fault/test_faults.py", SPARKS, "tests/unit/a.py", "tests/unit/b.py", "tests/unit/c.py")


def taken(processes: str) -> list[str]:
    """Return what the processes with these numbers take, one after the other."""
    left = dict.fromkeys((*REST, *OF_SESSION))
    found = []
    for number in processes:
        found.append(next_scope(f"gw{number}", left))
        del left[found[-1]]
    return found


def test_each_process_has_a_part_of_its_own() -> None:
    assert taken("000") == [*OF_SESSION]
    assert taken("1111") == [SPARKS, *reversed(OF_SESSION)]
    assert taken("2222") == [group for group in REST if group != SPARKS]


def test_a_process_takes_what_others_have_left_from_the_end() -> None:
    assert taken("11110") == [SPARKS, *reversed(OF_SESSION), "tests/unit/c.py"]
    for number in "0123":
        assert sorted(taken(8 * number)) == sorted((*REST, *OF_SESSION))


def test_tests_that_start_sparks_of_their_own_are_one_group() -> None:
    assert scope_of("tests/e2e/test_demo.py::test_a") == scope_of("tests/spark/drivers/test_kills.py::test_b")
    assert scope_of("tests/unit/test_a.py::test_a[x::y]") == "tests/unit/test_a.py"
