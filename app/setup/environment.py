"""The environment in .venv: from the lock file alone, verified by hash, with a stamp when it is complete.

    python -m venv   pip install --require-hashes   pip install --no-deps -e .   Java, jars, class archive

The lock file names every package, so pip looks for no dependency, and three processes of it install a part
each: Spark takes as long as half of the others. Their modules are compiled beside the work on the class
archive, which keeps one core busy.

A stamp with the hash of the lock file records that all of this was done: the next set-up then ends at once
and needs no network. The stamp is removed before anything is changed and written last, so a broken set-up is
never taken for a complete one.
"""

import fcntl
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD_PACKAGES = (
    "setuptools",
    "wheel",
    "packaging",
)  # installed first: the lock's source packages build with them
LARGEST_PACKAGE = "pyspark"  # 450 MB of source, from which pip builds a wheel
# venv refuses a colon, shells read these in the scripts of pip, and Spark lists and globs the paths of jars
UNUSABLE_IN_PATHS = ':"$`\\\n,*?[]{}'
LOG_TAIL_LINES = 15
PROGRESS_EACH_S = 1.0


# Read by bash and zsh; other shells give a sourced script no path, and do not check.
_ACTIVATION_GUARD = """\
_commitlog_script="${BASH_SOURCE:-$0}"
if [ "${_commitlog_script##*/}" = activate ] && \\
    [ "$(cd "$(dirname "$_commitlog_script")/.." && pwd -P)" != HERE ]; then
    echo "this environment was created in "HERE"; run \\`make setup\\` in this checkout first" >&2
    unset _commitlog_script
    return 1
fi
unset _commitlog_script
"""


class SetupFailed(Exception):
    """The environment could not be created. The message states the step, the reason and the remedy."""


def lock_packages(lock: str) -> dict[str, str]:
    """Return the lock file's blocks by package name: its requirement line with hashes, as pip reads it."""
    blocks = re.split(r"^(?=[a-z0-9][a-z0-9._-]*==)", lock, flags=re.MULTILINE)
    return {block.split("==", 1)[0]: block for block in blocks if "==" in block.partition("\n")[0]}


class Environment:
    """The virtual environment of one checkout. `root`: the folder of the checkout."""

    def __init__(self, root: Path = ROOT) -> None:
        self.root = root
        self.folder = root / ".venv"
        self.python = self.folder / "bin" / "python"
        self.stamp = self.folder / "commitlog-setup.json"
        self.lock = root / "requirements.lock"
        self.log = root / ".cache" / "setup.log"

    @property
    def in_checkout(self) -> bool:
        """False where the package was installed from a wheel."""
        return self.lock.with_name("pyproject.toml").exists()

    def fingerprint(self) -> dict[str, str]:
        """Content of the stamp of a complete set-up from the current files."""
        java = hashlib.sha256()  # the set-up compiles these
        for path in sorted(self.root.glob("spark_jobs/session/*.java")):
            java.update(path.name.encode() + b"\0" + path.read_bytes())
        return {
            "classes": "1",  # the set-up writes an archive of them
            "java": java.hexdigest(),
            "lock": hashlib.sha256(self.lock.read_bytes()).hexdigest(),
            "project": hashlib.sha256((self.root / "pyproject.toml").read_bytes()).hexdigest(),
            "root": str(self.root),  # an environment that was moved no longer works
        }

    def is_ready(self) -> bool:
        """Return whether a set-up from this very lock file was completed here."""
        try:
            return self.python.exists() and json.loads(self.stamp.read_text("utf-8")) == self.fingerprint()
        except (OSError, ValueError):
            return False

    def set_up(self, *, again: bool = False) -> None:
        """Create the environment unless it is ready. Raises SetupFailed."""
        if self.is_ready() and not again:
            return
        self._check_path()
        self.log.parent.mkdir(exist_ok=True)
        with self._alone():
            if self.is_ready() and not again:
                return
            started = time.monotonic()
            self.stamp.unlink(missing_ok=True)
            self.log.write_text("", "utf-8")
            self._make_folder()
            self._install_packages()
            self._install_project()
            self._prepare_spark()
            self._write_stamp()
            _print_step(f"ready after {time.monotonic() - started:.0f} s")

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Allow one set-up at a time in a checkout: a second one waits."""
        with (self.log.parent / "setup.lock").open("w", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _check_path(self) -> None:
        if found := [letter for letter in UNUSABLE_IN_PATHS if letter in str(self.root)]:
            raise SetupFailed(
                f"the path of this checkout, {self.root}, contains {' '.join(map(repr, found))}, which "
                "virtual environments or Spark cannot use: move the checkout to another folder."
            )

    def _make_folder(self) -> None:
        if find_spec("ensurepip") is None:
            version = f"{sys.version_info.major}.{sys.version_info.minor}"
            raise SetupFailed(
                f"this Python ({sys.executable}) cannot create virtual environments: it has no ensurepip.\n"
                f"On Debian: apt-get install python3-venv   (or python{version}-venv), then run this again."
            )
        if self._works():
            _print_step(f"1/6 environment: {self.folder} exists")
            self._remove_partial_packages()
            return
        _print_step(f"1/6 environment: creating {self.folder} with Python {sys.version.split()[0]}")
        self._run([sys.executable, "-m", "venv", "--clear", str(self.folder)], "make the environment")
        self._guard_activation()

    def _guard_activation(self) -> None:
        """Let `activate` refuse to run elsewhere: in a moved or copied checkout it would put the commands of
        the old one on the PATH."""
        script = self.folder / "bin" / "activate"
        here = shlex.quote(str(self.folder.resolve()))
        guard = os.fsencode(
            _ACTIVATION_GUARD.replace("HERE", here)
        )  # the shell reads the path as it is on disk
        script.write_bytes(guard + script.read_bytes())

    def _remove_partial_packages(self) -> None:
        """Let pip install again what a killed pip has begun: it takes a package with METADATA for installed,
        writes INSTALLER after all of its files, and RECORD last."""
        for metadata in self.folder.glob("lib/*/site-packages/*.dist-info"):
            if not all((metadata / name).is_file() for name in ("INSTALLER", "RECORD")):
                shutil.rmtree(metadata)

    def _works(self) -> bool:
        """Return whether the environment's Python runs, is new enough and has pip."""
        test = "import sys, pip; sys.exit(sys.version_info < (3, 11))"
        try:
            return subprocess.run([self.python, "-c", test], capture_output=True, check=False).returncode == 0
        except OSError:
            return False

    def _install_packages(self) -> None:
        packages = lock_packages(self.lock.read_text("utf-8"))
        _print_step(f"2/6 packages: {len(packages)} from {self.lock.name}, each checked by its hash")
        self._install("install the build tools", (packages[name] for name in BUILD_PACKAGES))
        counter = PackageCounter(len(packages), self.folder)
        spark = [packages.pop(LARGEST_PACKAGE)]
        others = [*packages.values()]
        try:
            with ThreadPoolExecutor() as beside:
                parts = [
                    beside.submit(self._install, "install Spark", spark),
                    beside.submit(self._install, "install the packages", others[::2], counter),
                    beside.submit(self._install, "install the packages", others[1::2], counter),
                ]
                for part in parts:
                    part.result()
        finally:
            counter.end()

    def _install(self, what: str, requirements: Iterable[str], watch: "PackageCounter | None" = None) -> None:
        """Install packages of the lock file, and none that they depend on."""
        with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as file:
            file.write("".join(requirements))
            file.flush()
            options = ("--require-hashes", "--no-deps", "--no-build-isolation", "--no-compile")
            self._pip(what, *options, "-r", file.name, watch=watch)

    def _install_project(self) -> None:
        _print_step("3/6 commitlog itself")
        # its only build requirement is installed from the lock file: nothing is downloaded
        options = ("--no-deps", "--no-build-isolation", "--no-index", "-e", str(self.root))
        self._pip("install commitlog", *options)

    def _prepare_spark(self) -> None:
        find_java = (
            "from spark_jobs.session.java import find_java_home; java = find_java_home(); "
            "print(java.version, 'from', java.source)"
        )
        _print_step(f"4/6 Java: {self._run([str(self.python), '-c', find_java], 'find Java').strip()}")
        _print_step("5/6 jars: download Delta's and check their SHA-1; compile ours")
        self._run([str(self.python), "-m", "spark_jobs.session.jars"], "have the jars")
        _print_step("6/6 modules and Spark's classes, 200 MB, for faster starts: takes one to two minutes")
        archive = [str(self.python), "-m", "spark_jobs.session.make_class_archive"]
        with ThreadPoolExecutor() as beside:
            beside.submit(self._compile)
            try:
                self._run(archive, "write the classes")
            except SetupFailed as failed:
                _print_step(f"    sessions start without this archive: {failed}")

    def _compile(self) -> None:
        """Compile the modules of the packages and of commitlog; those with errors are left as they are, as
        pip does."""
        folders = [self.folder / "lib", *(self.root / name for name in ("app", "storage", "spark_jobs"))]
        with suppress(SetupFailed):
            self._run([str(self.python), "-m", "compileall", "-q", *map(str, folders)], "compile")

    def _write_stamp(self) -> None:
        self.stamp.write_text(json.dumps(self.fingerprint(), indent=2) + "\n", "utf-8")

    def _pip(self, what: str, *options: str, watch: "PackageCounter | None" = None) -> None:
        pip = [str(self.python), "-m", "pip", "--disable-pip-version-check", "--no-input", "install"]
        self._run([*pip, "--progress-bar", "off", *options], what, watch)

    def _run(self, command: Sequence[str], what: str, watch: "PackageCounter | None" = None) -> str:
        """Return the command's output, also kept in the log; SetupFailed with its last lines when it
        fails."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        lines: list[str] = []
        with (
            self.log.open("a", buffering=1, encoding="utf-8") as log,
            subprocess.Popen(
                command,
                cwd=self.root,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                encoding="utf-8",
                errors="replace",
            ) as process,
        ):
            assert process.stdout is not None
            for line in process.stdout:
                lines.append(line)
                log.write(line)
                if watch is not None:
                    watch.see(line)
        if process.returncode != 0:
            tail = "".join(lines[-LOG_TAIL_LINES:])
            raise SetupFailed(f"could not {what}.\n{tail}\nThe complete output is in {self.log}")
        return "".join(lines)


class PackageCounter:
    """Converts pip's output into progress: a moving line on a terminal, otherwise one line per ten packages.

    While pip installs what it has collected, it prints nothing: then the packages in `folder`, the
    environment, are counted.
    """

    def __init__(self, total: int, folder: Path) -> None:
        self._total = total
        self._folder = folder
        self._seen = 0
        self._moving = sys.stdout.isatty()
        self._ended = threading.Event()
        self._installing = threading.Thread(target=self._count_installed)
        self._lock = threading.Lock()

    def see(self, line: str) -> None:
        """Take a line of one of the processes; each has a thread."""
        with self._lock:
            self._see(line)

    def _see(self, line: str) -> None:
        if line.startswith(("Collecting ", "Requirement already satisfied: ")):
            self._seen = min(self._seen + 1, self._total)
            name = line.split(": " if "satisfied" in line else " ", 1)[1].split("==")[0].split()[0]
            if self._moving or self._seen % 10 == 0:
                self._show_progress(f"{self._seen}/{self._total} {name}")
        elif line.startswith("Building wheels"):
            self._show_progress("building wheels")
        elif line.startswith("Installing collected") and not self._installing.is_alive():
            self._installing.start()

    def _count_installed(self) -> None:
        shown = 0
        while True:
            found = self._folder.glob("lib/*/site-packages/*.dist-info")
            installed = sum(not each.name.startswith("pip-") for each in found)
            if self._moving or shown == 0 or installed >= shown + 10:
                shown = installed
                self._show_progress(f"{installed}/{self._total} installed")
            if self._ended.wait(PROGRESS_EACH_S):
                return

    def end(self) -> None:
        self._ended.set()
        if self._installing.is_alive():
            self._installing.join()
        if self._moving:
            sys.stdout.write("\r\x1b[K")
            sys.stdout.flush()

    def _show_progress(self, text: str) -> None:
        sys.stdout.write(f"\r\x1b[K    {text[:70]}" if self._moving else f"    {text}\n")
        sys.stdout.flush()


def _print_step(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
