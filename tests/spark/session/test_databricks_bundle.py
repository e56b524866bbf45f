"""databricks.yml, as far as it can be checked without a workspace: names, places, arguments, references.

KEYS are those of the schema that `databricks bundle schema` prints (CLI of August 2026), as far as we use it.
"""

import importlib
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from spark_jobs import databricks, run, upkeep, verify
from spark_jobs.session.locations import is_url
from spark_jobs.session.settings import given_options

ROOT = Path(__file__).parents[3]
BUNDLE: dict[str, Any] = yaml.safe_load((ROOT / "databricks.yml").read_text())
JOBS: dict[str, Any] = BUNDLE["resources"]["jobs"]
VALUES = {  # of the variables, as a user would set them
    "endpoint": "https://n1.example:8101,https://n2.example:8101",
    "tables": "s3://bucket/tables",
    "scratch": "/Volumes/main/default/scratch/commitlog",
    "node_type_id": "m6gd.large",
}
PARSERS: dict[str, Callable[[list[str]], Any]] = {
    "commitlog-materialize": run.parse_arguments,
    "commitlog-upkeep": partial(given_options, upkeep.options, "spark_jobs.upkeep"),
    "commitlog-verify": partial(given_options, verify.options, "spark_jobs.verify"),
}
REFERENCE = re.compile(r"\$\{([^}]*)\}")
KNOWN_REFERENCES = {"bundle.name", "bundle.target"}

SCHEDULE = {"quartz_cron_expression": str, "timezone_id": str, "pause_status": ["PAUSED", "UNPAUSED"]}
CLUSTER = {
    "spark_version": str,
    "node_type_id": str,
    "num_workers": (int, str),
    "data_security_mode": ["SINGLE_USER", "USER_ISOLATION"],
    "spark_env_vars": {"*": str},
}
TASK = {
    "task_key": str,
    "job_cluster_key": str,
    "libraries": [{"whl": str, "pypi": {"package": str}}],
    "python_wheel_task": {"package_name": str, "entry_point": str, "parameters": [str]},
    "notebook_task": {"notebook_path": str},
}
JOB = {
    "name": str,
    "description": str,
    "tags": {"*": str},
    "continuous": {"pause_status": ["PAUSED", "UNPAUSED"]},
    "schedule": SCHEDULE,
    "parameters": [{"name": str, "default": str}],
    "job_clusters": [{"job_cluster_key": str, "new_cluster": CLUSTER}],
    "tasks": [TASK],
}
PIPELINE = {
    "name": str,
    "catalog": str,
    "schema": str,
    "serverless": bool,
    "channel": ["CURRENT", "PREVIEW"],
    "libraries": [{"file": {"path": str}}],
    "configuration": {"*": str},
    "environment": {"dependencies": [str]},
}
KEYS = {
    "bundle": {"name": str},
    "variables": {"*": {"description": str, "default": (str, int)}},
    "sync": {"paths": [str]},
    "artifacts": {"*": {"type": ["whl"], "path": str, "build": str}},
    "resources": {"jobs": {"*": JOB}, "pipelines": {"*": PIPELINE}},
    "targets": {
        "*": {"mode": ["development", "production"], "default": bool, "workspace": {"root_path": str}}
    },
}


def complaints(value: Any, wanted: Any, place: str = "") -> Iterator[str]:
    """Return the places where a document differs from `wanted`: types, keys (`*`: any), lists, or choices."""
    if isinstance(wanted, dict):
        if not isinstance(value, dict):
            yield f"{place}: not a mapping"
            return
        for key, inner in value.items():
            if key not in wanted and "*" not in wanted:
                yield f"{place}.{key}: unknown"
            else:
                yield from complaints(inner, wanted.get(key, wanted.get("*")), f"{place}.{key}")
    elif isinstance(wanted, list) and not isinstance(wanted[0], str):
        if not isinstance(value, list):
            yield f"{place}: not a list"
            return
        for number, inner in enumerate(value):
            yield from complaints(inner, wanted[0], f"{place}[{number}]")
    elif isinstance(wanted, list):
        if value not in wanted:
            yield f"{place}: {value!r} is none of {wanted}"
    elif not isinstance(value, wanted):
        yield f"{place}: {value!r} is not {wanted}"


def texts(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for inner in value.values():
            yield from texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from texts(inner)
    elif isinstance(value, str):
        yield value


def resolved(text: str) -> str:
    """With every variable's default, or VALUES."""

    def value_of(match: re.Match[str]) -> str:
        name = match[1].removeprefix("var.")
        return str(VALUES.get(name, BUNDLE["variables"][name].get("default")))

    return REFERENCE.sub(value_of, text)


def tasks(kind: str) -> list[Any]:
    found = [
        pytest.param(job, task, id=f"{name}-{task['task_key']}")
        for name, job in JOBS.items()
        for task in job["tasks"]
        if kind in task
    ]
    assert found
    return found


def test_every_key_and_value_is_one_that_bundles_know() -> None:
    assert list(complaints(BUNDLE, KEYS)) == []
    assert next(complaints({**BUNDLE, "resource": {}}, KEYS)) == ".resource: unknown"


def test_the_pipeline_has_the_configuration_and_the_libraries_that_its_file_needs() -> None:
    pipeline = BUNDLE["resources"]["pipelines"]["flights"]
    file = ROOT / pipeline["libraries"][0]["file"]["path"]
    spec = yaml.safe_load((file.parent / "spark-pipeline.yml").read_text())
    assert pipeline["configuration"].keys() == spec["configuration"].keys() - {"spark.sql.sources.default"}
    assert [each["glob"]["include"] for each in spec["libraries"]] == [file.name]
    named = [each["pypi"]["package"] for each in JOBS["materialize"]["tasks"][0]["libraries"][1:]]
    assert pipeline["environment"]["dependencies"] == ["./dist/*.whl", *named]


def test_every_reference_resolves_and_every_variable_is_used() -> None:
    references = {match for text in texts(BUNDLE) for match in REFERENCE.findall(text)}
    variables = {f"var.{name}" for name in BUNDLE["variables"]}
    assert references - variables <= KNOWN_REFERENCES
    assert variables <= references
    needed = {name for name, variable in BUNDLE["variables"].items() if "default" not in variable}
    assert needed == set(VALUES)


@pytest.mark.parametrize(("job", "task"), tasks("python_wheel_task"))
def test_every_wheel_task_calls_an_entry_point_with_arguments_that_it_takes(
    job: Mapping[str, Any], task: Mapping[str, Any]
) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wheel = task["python_wheel_task"]
    assert wheel["package_name"] == project["name"]
    module, _, function = project["scripts"][wheel["entry_point"]].partition(":")
    assert callable(getattr(importlib.import_module(module), function))
    arguments = [resolved(text) for text in wheel["parameters"]]
    given = PARSERS[wheel["entry_point"]](arguments)
    assert "default" in (given.logs if hasattr(given, "logs") else given.log)
    if hasattr(given, "tables"):
        assert is_url(str(given.tables))


@pytest.mark.parametrize(("job", "task"), tasks("notebook_task"))
def test_every_notebook_is_there_and_knows_the_parameters(
    job: Mapping[str, Any], task: Mapping[str, Any]
) -> None:
    path = ROOT / task["notebook_task"]["notebook_path"]
    assert path.parent.name in BUNDLE["sync"]["paths"]
    widgets = set(re.findall(r'dbutils\.widgets\.\w+\(\s*"(\w+)"', path.read_text()))
    assert {"log", "tables"} <= widgets <= {parameter["name"] for parameter in job["parameters"]}


def test_all_notebooks_are_in_the_bundle() -> None:
    paths = [task["notebook_task"]["notebook_path"] for task in JOBS["notebooks"]["tasks"]]
    assert sorted(Path(path).name for path in paths) == sorted(
        path.name for path in (ROOT / "notebooks").glob("0*.py")
    )


@pytest.mark.parametrize("name", JOBS)
def test_every_task_has_its_cluster_and_the_wheel_that_is_built(name: str) -> None:
    clusters = {cluster["job_cluster_key"]: cluster["new_cluster"] for cluster in JOBS[name]["job_clusters"]}
    build = BUNDLE["artifacts"]["commitlog"]["build"]
    for task in JOBS[name]["tasks"]:
        cluster = clusters[task["job_cluster_key"]]
        assert cluster["spark_env_vars"]["COMMITLOG_TOKEN"].startswith("{{secrets/")
        assert [library["whl"] for library in task["libraries"] if "whl" in library] == ["./dist/*.whl"]
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        needed = {each for each in (*extras["databricks"], *extras["schemas"]) if "commitlog" not in each}
        assert needed <= {library["pypi"]["package"] for library in task["libraries"] if "pypi" in library}
    assert "--wheel-dir dist " in build
    assert [("continuous" in job, "schedule" in job) for job in (JOBS["materialize"], JOBS["upkeep"])] == [
        (True, False),
        (False, True),
    ]


def test_a_job_that_fails_raises_since_a_return_counts_as_success(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(databricks.run, "main", lambda: 1)
    with pytest.raises(databricks.JobFailed, match="materialize ended with exit code 1"):
        databricks.materialize()
    monkeypatch.setattr(databricks.upkeep_job, "main", lambda: 0)
    databricks.upkeep()
