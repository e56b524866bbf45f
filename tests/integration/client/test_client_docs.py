"""The examples of docs/client.md, as a user of the wheel runs them: checked by mypy --strict, then run."""

import re
import subprocess
import sys
from pathlib import Path

from tests.support.cluster import Cluster
from tests.unit.distribution.conftest import installed, python, wheel

__all__ = ["installed", "python", "wheel"]
ROOT = Path(__file__).parents[3]
EXAMPLE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
MYPY = ("--strict", "--no-error-summary", "--cache-dir=/dev/null", "--follow-imports=silent")


def test_the_examples_of_the_page_run(
    cluster: Cluster, own_logs: list[str], python: Path, installed: Path, tmp_path: Path
) -> None:
    url = f"http://127.0.0.1:{cluster.rest_ports['n1']}"
    program = tmp_path / "example.py"
    own_logs.append("examples")
    created = cluster.call("POST", "n1", "/v1/logs", json={"name": "examples"})
    assert created.status_code in (200, 201), created.text
    page = (ROOT / "docs" / "client.md").read_text()  # on a log of its own: they read from its beginning
    examples = EXAMPLE.findall(page.replace("Client(ENDPOINT)", 'Client(ENDPOINT, log="examples")'))
    assert len(examples) == 9
    program.write_text("\n".join([f'ENDPOINT = "{url}"', *examples]))
    ran = subprocess.run([python, program], cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert ran.returncode == 0, ran.stderr
    assert "second" in ran.stdout
    assert "index-mismatch not_applied" in ran.stdout
    first = tmp_path / "first.py"  # what needs no other package
    first.write_text("\n".join([f'ENDPOINT = "{url}"', *examples[:6], *examples[7:]]))
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", *MYPY, first],
        cwd=tmp_path,
        env={"MYPYPATH": str(installed), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert checked.returncode == 0, checked.stdout
