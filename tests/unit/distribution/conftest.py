"""The wheel, built once and installed in an environment where the checkout cannot be imported."""

import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
OFFLINE = ("--no-deps", "--no-build-isolation", "--no-index", "--quiet")


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of the wheel, built without network."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", *OFFLINE, "--wheel-dir", folder, ROOT]
    subprocess.run(command, check=True, timeout=240)
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="session")
def installed(wheel: Path) -> Path:
    """The folder that holds the wheel's files."""
    folder = wheel.parent / "installed"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


@pytest.fixture(scope="session")
def python(installed: Path) -> Path:
    """The Python of a new environment: the wheel, and the other packages of this environment."""
    home = installed.parent / "environment"
    venv.create(home, with_pip=False, symlinks=True)
    others = installed.parent / "packages"
    others.mkdir()
    for entry in Path(pytest.__file__).parents[1].iterdir():
        if "commitlog" not in entry.name and entry.suffix != ".pth":
            (others / entry.name).symlink_to(entry)
    target = next((home / "lib").glob("python*/site-packages"))
    (target / "commitlog.pth").write_text(f"{installed}\n{others}\n")
    return home / "bin" / "python"
