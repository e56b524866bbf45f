"""The package as an archive: whole, the same bytes for the same files, and importable from it."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from app.errors import ConfigError
from spark_jobs import package
from spark_jobs.errors import SinkError
from spark_jobs.package import properties
from spark_jobs.session.archive import make_zip
from spark_jobs.session.settings import SessionSettings, SparkSettings
from spark_jobs.session.spark_session import open_session
from spark_jobs.sink.staging import Staging
from tests.support.cluster import free_ports


def test_the_archive_is_whole_stable_and_importable(tmp_path: Path) -> None:
    archive = make_zip(tmp_path)
    before = archive.stat().st_mtime_ns
    assert make_zip(tmp_path) == archive
    assert archive.stat().st_mtime_ns == before
    assert make_zip(tmp_path / "again").read_bytes() == archive.read_bytes()
    with zipfile.ZipFile(archive) as opened:
        names = opened.namelist()
    assert {"app/__init__.py", "spark_jobs/source/data_source.py", "storage/format/records.py"} <= set(names)
    assert not [name for name in names if name.endswith(".pyc")]
    look = (
        "import sys; sys.path.insert(0, sys.argv[1]); from spark_jobs import source; "
        "from spark_jobs.session import archive; "
        "print(archive.package_root(), archive.make_zip('/nowhere'))"
    )
    reported = subprocess.run(
        [sys.executable, "-I", "-c", look, archive], check=True, capture_output=True, text=True, cwd=tmp_path
    )
    assert reported.stdout.split() == [str(archive)] * 2


def test_properties_are_what_java_reads() -> None:
    assert properties({"spark.b": r"C:\x", "spark.a": "1,2"}) == "spark.a=1,2\nspark.b=C:\\\\x\n"


def test_a_configuration_that_cannot_work_is_reported_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert package.main([str(tmp_path / "dist"), "--master", "nowhere"]) == 2
    assert (
        "master must be local[N], spark://HOST:PORT, yarn or k8s://..., got 'nowhere'"
        in capsys.readouterr().err
    )
    assert not (tmp_path / "dist").exists()


def test_a_server_that_does_not_answer_is_reported_at_once() -> None:
    (port,) = free_ports(1)
    settings = SparkSettings(session=SessionSettings(remote=f"sc://127.0.0.1:{port}"))
    with pytest.raises(ConfigError, match=f"answers at sc://127.0.0.1:{port}"), open_session("x", settings):
        pytest.fail("there is a session")


def test_a_task_that_does_not_see_the_drivers_staging_refuses(tmp_path: Path) -> None:
    driver, elsewhere = Staging(tmp_path / "shared"), Staging(tmp_path / "own")
    identity = driver.identify()
    assert driver.identify() == identity
    driver.check(identity)
    with pytest.raises(SinkError, match=r"No such file.*that the driver and all executors share"):
        elsewhere.check(identity)
    elsewhere.identify()
    with pytest.raises(SinkError, match="is not the driver's"):
        elsewhere.check(identity)
    assert [path.name for path in (tmp_path / "shared").iterdir()] == ["identity"]
