"""`commitlog demo` on a part of the flights: the kill, the proofs, the notebook, and nothing left running."""

import json
from itertools import pairwise
from pathlib import Path

from app.demo.folder import MARKER
from tests.e2e.processes import commitlog, free_port, processes_of

FLIGHTS = 3_000
DEMO_TIMEOUT_S = 240.0


def test_the_demo_proves_what_it_claims(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    arguments = ["--flights", str(FLIGHTS), "--data", str(folder), "--port", str(free_port()), "--json"]
    demo = commitlog("demo", *arguments, timeout_s=DEMO_TIMEOUT_S)
    assert demo.returncode == 0, demo.stderr[-3_000:]
    outcome = json.loads(demo.stdout)
    assert outcome["holds"]
    assert len(outcome["proofs"]) >= 10
    assert all(proof["holds"] for proof in outcome["proofs"])
    assert FLIGHTS // 2 <= outcome["killed"]["after"] < FLIGHTS
    assert outcome["gap_ms"] > 0
    leaders, killed = [epoch["leader"] for epoch in outcome["epochs"]], outcome["killed"]["node"]
    # a busy machine may cause further elections
    assert any(old == killed != new for old, new in pairwise(leaders)), leaders
    assert "<img" in Path(outcome["notebook"]).read_text()
    assert (folder / "proofs.progress").read_text().startswith("cell ")
    assert (folder / MARKER).is_file()
    assert f"all {len(outcome['proofs'])} proofs hold" in demo.stderr
    assert processes_of(folder) == []


def test_a_folder_that_no_demo_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")
    refused = commitlog("demo", "--data", str(tmp_path), "--port", str(free_port()))
    assert refused.returncode == 1
    assert "contains files that no demo has created" in refused.stderr
    assert (tmp_path / "precious").read_text() == "mine"
