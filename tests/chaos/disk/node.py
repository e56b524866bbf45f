"""A production node on a FaultyFileSystem: `python -m tests.chaos.disk.node --config FILE --node ID`."""

import sys
import tomllib
from pathlib import Path

import storage.files
from tests.chaos.disk.faulty_files import FaultyFileSystem


def main() -> int:
    config = Path(sys.argv[sys.argv.index("--config") + 1])
    node = sys.argv[sys.argv.index("--node") + 1]
    tables = tomllib.loads(config.read_text())["nodes"]
    data = Path(next(table["data"] for table in tables if table["id"] == node))
    files = FaultyFileSystem(data)
    storage.files.OsFileSystem = lambda: files  # type: ignore[assignment,misc]  # before anything asks for one
    from app.serve import main as serve

    return serve()


if __name__ == "__main__":
    sys.exit(main())
