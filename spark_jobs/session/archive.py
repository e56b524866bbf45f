"""The archive of this package, which a driver sends to its executors and to a server of Spark Connect.

It does not contain the packages that this one imports (requirements.lock): executors have them installed, or
unpack them from `spark.archives`. Uses only Python's standard library.
"""

import hashlib
import tempfile
import zipfile
from pathlib import Path

# ["spark_jobs", "session"] in a checkout, ["commitlog", "spark", "session"] as installed
_OWN = (__package__ or "").split(".")
PACKAGES = ("app", "storage", "spark_jobs") if len(_OWN) == 2 else (_OWN[0],)
STAMP = (1980, 1, 1, 0, 0, 0)  # the same files make the same archive


def package_root() -> Path:
    """Return the folder, or the archive, that this package was imported from."""
    return Path(__file__).resolve().parents[len(_OWN)]


def make_zip(folder: Path) -> Path:
    """Return the package as FOLDER/commitlog-DIGEST.zip, written unless it exists, or the archive that it is
    now.

    The digest is of the content: executors and servers know archives by their names, and two versions may be
    in use at the same time.
    """
    root = package_root()
    if root.is_file():
        return root
    files = [
        path
        for name in PACKAGES
        for path in sorted((root / name).rglob("*"))
        if path.is_file() and path.suffix != ".pyc"
    ]
    digest = hashlib.sha256()
    for path in files:
        digest.update(f"{path.relative_to(root)}\0{path.stat().st_size}\0".encode() + path.read_bytes())
    target = folder / f"commitlog-{digest.hexdigest()[:16]}.zip"
    if target.is_file():
        return target
    folder.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.NamedTemporaryFile(dir=folder, delete=False) as file,
        zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive,
    ):
        for path in files:
            entry = zipfile.ZipInfo(path.relative_to(root).as_posix(), STAMP)
            archive.writestr(entry, path.read_bytes(), zipfile.ZIP_DEFLATED)
    Path(file.name).replace(target)
    return target
