"""The wheel that a cluster installs: built without network, whole, and importable without this checkout."""

import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[3]
LEFT_OUT = ("tests", "notebooks", "conf")
LOOK = """
import importlib, json, pkgutil, sys
sys.path.insert(0, sys.argv[1])
import app, spark_jobs, storage
from spark_jobs.session.java import CACHE_FOLDER
from spark_jobs.source import CommitlogDataSource
modules = [m.name for m in pkgutil.walk_packages(spark_jobs.__path__, "spark_jobs.")]
for name in modules:
    importlib.import_module(name)
places = [module.__file__ for module in (app, spark_jobs, storage)]
print(json.dumps([places, modules, CommitlogDataSource.name(), str(CACHE_FOLDER)]))
"""


def test_the_wheel_is_built_offline_and_works_without_the_checkout(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for name in ("app", "storage", "spark_jobs"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", source)
    build = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
        "--quiet",
    ]
    subprocess.run([*build, "--wheel-dir", tmp_path / "dist", source], check=True, timeout=200)
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        archive.extractall(tmp_path / "installed")
    files = {
        str(path.relative_to(ROOT))
        for name in ("app", "storage", "spark_jobs")
        for path in (ROOT / name).rglob("*.*")
        if path.suffix in (".py", ".java")
    }
    assert files <= set(names)
    assert not [name for name in names if name.startswith(LEFT_OUT)]
    assert [name for name in names if name.startswith("app/api/routes/live/")]
    told = subprocess.run(
        [sys.executable, "-I", "-c", LOOK, str(tmp_path / "installed")],
        check=True,
        capture_output=True,
        text=True,
        timeout=100,
        cwd=tmp_path,
        env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
    )
    places, modules, name, cache = json.loads(told.stdout)
    assert all(place.startswith(str(tmp_path / "installed")) for place in places)
    assert {f"spark_jobs.{name}" for name in ("run", "upkeep", "verify", "source", "databricks")} <= set(
        modules
    )
    assert (name, cache) == ("commitlog", str(tmp_path / ".cache" / "commitlog"))
