"""The last report of the job that writes a log's tables, from the files in their folder."""

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from app.tables.job_reports import FILE_MAX_BYTES, JobReport, JobReports, job_reports

NOT_UTF_8 = '{"state": "failed", "updated_ms": 1, "logs": {"a": {"error": "\udcff"}}}'


def job_report(root: str, log: str) -> JobReport | None:
    return job_reports(root).get(log)


def write(path: Path, **document: Any) -> None:
    path.write_text(json.dumps({"state": "running", "updated_ms": 9, "records_per_s": 0.0} | document))


@pytest.mark.parametrize(
    ("document", "state", "error", "failed_ms"),
    [
        ({"logs": {"a": {"entries_rows": 1, "error": None}}}, "running", None, None),
        ({"logs": {"a": {"error": "full", "failed_ms": 7}, "b": {}}}, "failed", "full", 7),
        ({"logs": {"a": {"error": "full"}}, "state": "failed"}, "failed", "full", None),  # of an older job
        ({"logs": {"a": {}}, "state": "failed", "error": "no memory"}, "failed", "no memory", 9),
        ({"logs": {"a": {}}, "state": "failed"}, "failed", None, 9),
        ({"logs": {"a": {}, "b": {"error": "full"}}, "state": "failed"}, "done", None, None),
        ({"logs": {"a": {}}, "state": "stopped"}, "stopped", None, None),
    ],
)
def test_a_failure_has_its_reason_and_its_time(
    document: dict[str, Any], state: str, error: str | None, failed_ms: int | None, tmp_path: Path
) -> None:
    write(tmp_path / "progress.json", **document)
    assert job_report(str(tmp_path), "a") == JobReport(state, 9, error, failed_ms)
    assert job_report(str(tmp_path), "other") is None


def test_the_newest_report_about_the_log_counts(tmp_path: Path) -> None:
    write(tmp_path / "progress.json", updated_ms=5, logs={"a": {"error": "old"}})
    write(tmp_path / "progress-a.json", updated_ms=6, logs={"a": {}})
    write(tmp_path / "progress-b.json", updated_ms=7, logs={"b": {}})
    assert job_report(str(tmp_path), "a") == JobReport("running", 6, None, None)


@pytest.mark.parametrize(
    "text", ["", "[]", '{"state": 1}', '{"state": "failed", "updated_ms": 1}', "\udcff", NOT_UTF_8]
)
def test_a_file_that_is_no_report_is_left_out(text: str, tmp_path: Path) -> None:
    (tmp_path / "progress.json").write_bytes(text.encode(errors="surrogateescape"))
    (tmp_path / "progress-a.json").mkdir()
    assert job_report(str(tmp_path), "a") is None
    assert job_report(str(tmp_path / "none"), "a") is None
    assert job_report("s3://bucket/tables", "a") is None


def test_a_file_that_could_block_or_fill_the_memory_of_a_node_is_not_read(tmp_path: Path) -> None:
    """A node reads the files at each call, in a few threads that all calls share."""
    os.mkfifo(tmp_path / "progress-fifo.json")
    (tmp_path / "progress-device.json").symlink_to("/dev/zero")
    (tmp_path / "progress-deep.json").write_text('{"x": ' + "[" * 100_000)
    (tmp_path / "progress-sparse.json").touch()
    os.truncate(tmp_path / "progress-sparse.json", FILE_MAX_BYTES + 1)
    assert job_report(str(tmp_path), "a") is None
    write(tmp_path / "progress.json", logs={"a": {}})
    assert job_report(str(tmp_path), "a") == JobReport("running", 9, None, None)


def test_files_are_read_again_only_after_one_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each scrape of the metrics asks for the reports, and a file of thousands of logs has megabytes."""
    opened, really_open = [], os.open

    def counted(path: Path, *how: int) -> int:
        opened.append(path.name)
        return really_open(path, *how)

    monkeypatch.setattr(os, "open", counted)
    reports = JobReports(str(tmp_path))
    assert reports.read() == {}
    write(tmp_path / "progress.json", logs={"a": {"error": "full"}, "b": {}})
    for _ in range(3):
        assert {log: job.state for log, job in reports.read().items()} == {"a": "failed", "b": "running"}
    assert opened == ["progress.json"]
    write(tmp_path / "progress.new", logs={"a": {}, "b": {}})
    (tmp_path / "progress.new").replace(tmp_path / "progress.json")
    assert {job.state for job in reports.read().values()} == {"running"}
    (tmp_path / "progress.json").unlink()
    assert reports.read() == {}
    assert opened == ["progress.json"] * 2


def test_a_folder_that_cannot_be_listed_has_no_reports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise OSError(errno.ESTALE, "Stale file handle")

    write(tmp_path / "progress.json", logs={"a": {}})
    monkeypatch.setattr(os, "scandir", fails)
    assert JobReports(str(tmp_path)).read() == {}
