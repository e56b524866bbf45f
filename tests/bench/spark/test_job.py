"""The job of a benchmark ends with it, whatever ends the benchmark."""

from pathlib import Path

import pytest

from tests.bench.spark import job
from tests.bench.spark.many_tables import lacking

SLEEP = "import sys, time; print('begun', flush=True); time.sleep(600)"
DEAF = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {SLEEP}"


@pytest.mark.parametrize("program", [SLEEP, DEAF])
def test_a_job_ends_after_an_error_also_if_it_ignores_the_signal(
    program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "STOP_S", 0.5)
    found = []

    def bench() -> None:
        with job.running_job(tmp_path, "http://none", tmp_path, [], ("-c", program)) as process:
            found.append(process)
            while "begun" not in job.report(tmp_path):
                assert process.poll() is None
            raise TimeoutError("no rows")

    with pytest.raises(TimeoutError, match="no rows"):
        bench()
    assert found[0].poll() is not None


def test_a_log_that_the_job_has_not_reported_yet_lacks_rows(tmp_path: Path) -> None:
    assert lacking(tmp_path, ["a"]) == {"a"}
    (tmp_path / "progress.json").write_text('{"logs": {"a": {"entries_rows": 3}, "b": {"entries_rows": 0}}}')
    assert lacking(tmp_path, ["a", "b", "c"]) == {"b", "c"}
