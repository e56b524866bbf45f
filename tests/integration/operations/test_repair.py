"""Damaged logs are repaired: peers restore the files of one node, whatever is wrong with them."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from app.node.repair.marker import Note, RepairMarker
from storage.files import OsFileSystem
from tests.support import damage
from tests.support.cluster import Cluster, eventually, running
from tests.support.damage import bytes_of_log, log_folder, overwrite, segments

SMALL = {"segment_max_bytes": 40_000, "mark_interval_bytes": 8_000, "tail_cache_bytes": 0}
RECORDS = 45
VALUE = "v" * 2_000


def middle(folder: Path) -> Path:
    return segments(folder)[len(segments(folder)) // 2]


def flipped(folder: Path) -> None:
    damage.flip_bit(middle(folder), 20_000)


def zeroed(folder: Path) -> None:
    overwrite(middle(folder), 8_192, bytes(4_096))


def segment_gone(folder: Path) -> None:
    middle(folder).unlink()


def first_segment_gone(folder: Path) -> None:
    segments(folder)[0].unlink()


def segment_cut(folder: Path) -> None:
    with middle(folder).open("r+b") as file:
        file.truncate(10_000)


def all_gone(folder: Path) -> None:
    damage.delete_all_segments(folder, Random(1))


def two_places(folder: Path) -> None:
    overwrite(segments(folder)[0], 5_000, b"noise" * 300)
    overwrite(middle(folder), 0, bytes(10))


def deleted(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def garbage(name: str) -> Callable[[Path], None]:
    def fill(folder: Path) -> None:
        overwrite(folder / name, 0, Random(2).randbytes((folder / name).stat().st_size))

    return fill


DAMAGES: dict[str, Callable[[Path], None]] = {
    "flipped": flipped,
    "zeroed": zeroed,
    "segment-gone": segment_gone,
    "first-segment-gone": first_segment_gone,
    "segment-cut": segment_cut,
    "all-gone": all_gone,
    "two-places": two_places,
    "no-manifest": deleted("manifest"),
    "bad-manifest": garbage("manifest"),
    "no-vote": deleted("vote"),
    "bad-vote": garbage("vote"),
    "bad-checkpoint": garbage("checkpoint"),
    "bad-state": garbage("state"),
}


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    logs = [{"name": name} for name in (*DAMAGES, "leading", "reading", "many", "cut-short")]
    sections = {"storage": SMALL, "scrub": {"start_delay_ms": 500, "bytes_per_s": 100_000_000}}
    with running(tmp_path_factory.mktemp("damaged"), 3, logs=tuple(logs), sections=sections) as cluster:
        yield cluster


def events_of(cluster: Cluster, node: str, log: str, kind: str) -> list[dict[str, Any]]:
    events = cluster.get(node, f"/v1/logs/{log}/events").json()["events"]
    return [event["data"] for event in events if event["kind"] == kind]


def healed(cluster: Cluster, node: str, log: str) -> bool:
    return any(data["state"] == "healed" for data in events_of(cluster, node, log, "repair"))


@pytest.mark.rule("R-01", "R-07")
def test_every_damage_of_a_stopped_follower_is_repaired(damaged: Cluster) -> None:
    cluster, node = damaged, "n3"
    for log in DAMAGES:
        for number in range(RECORDS):
            assert cluster.append("n1", f"{number}-{VALUE}", log=log).status_code == 200
        cluster.wait_even(log)
    assert cluster.stop(node) == 0
    for log, inflict in DAMAGES.items():
        inflict(log_folder(cluster.folder / node, log))
        assert cluster.append("n1", "while it was away", log=log).status_code == 200
    cluster.start(node)
    for log in DAMAGES:
        eventually(lambda log=log: healed(cluster, node, log), what=f"{log} is healed", timeout_s=60)
    cluster.wait_ready(node)
    for log in DAMAGES:
        assert cluster.append("n1", "after", log=log).status_code == 200
        cluster.wait_even(log)
        leader = cluster.leader(log)
        other = leader if leader != node else next(other for other in cluster.ids if other != node)
        mine, theirs = (log_folder(cluster.folder / each, log) for each in (node, other))
        assert bytes_of_log(mine) == bytes_of_log(theirs), log
        assert (mine / "epochs").read_bytes() == (theirs / "epochs").read_bytes(), log
        (corruption,) = events_of(cluster, node, log, "corruption")
        assert corruption["found_by"] in ("start", "scrub"), log
        assert not (cluster.folder / node / "repairing" / log).exists()
    assert cluster.get(node, "/readyz").status_code == 200


@pytest.mark.rule("R-01")
def test_a_leader_damaged_while_it_leads_stands_down_and_is_repaired(damaged: Cluster) -> None:
    cluster, log = damaged, "leading"
    for number in range(RECORDS):
        assert cluster.append("n1", f"{number}-{VALUE}", log=log).status_code == 200
    cluster.wait_even(log)
    leader = cluster.leader(log)
    term = cluster.status(leader, log)["term"]
    folder = log_folder(cluster.folder / leader, log)
    overwrite(segments(folder)[0], 4_096, b"noise" * 500)
    answer = cluster.get(leader, f"/v1/logs/{log}/records", params={"from": "earliest"})
    problem = answer.json()
    assert (answer.status_code, problem["code"]) == (503, "repairing")
    assert problem["retryable"] is True
    # Appends go on through this very node, and elsewhere.
    options = {"log": log, "params": {"timeout_ms": 20_000}}
    assert cluster.append(leader, "through the damaged node", **options).status_code == 200
    other = next(node for node in cluster.ids if node != leader)
    assert cluster.append(other, "elsewhere", **options).status_code == 200
    assert cluster.status(other, log)["term"] > term
    eventually(lambda: healed(cluster, leader, log), what="the leader is healed", timeout_s=30)
    cluster.wait_even(log)
    assert bytes_of_log(folder) == bytes_of_log(log_folder(cluster.folder / other, log))
    assert len(cluster.values(leader, log=log)) == RECORDS + 2
    (corruption,) = events_of(cluster, leader, log, "corruption")
    assert corruption["found_by"] in ("read", "scrub", "peer", "replication")
    metrics = cluster.get(leader, "/metrics").text
    assert f'commitlog_repairs_total{{log="{log}"}} 1.0' in metrics
    assert f'commitlog_repairing{{log="{log}"}} 0.0' in metrics
    assert "critical" not in cluster.lines(leader)


@pytest.mark.rule("R-01")
def test_without_a_peer_a_repair_waits_and_does_not_vote(damaged: Cluster) -> None:
    """With one peer it is mended: then it holds all that it ever promised, and the two of them elect."""
    cluster, log = damaged, "many"
    for number in range(RECORDS):
        assert cluster.append("n1", f"{number}-{VALUE}", log=log).status_code == 200
    cluster.wait_even(log)
    for node in cluster.ids:
        assert cluster.stop(node) == 0
    middle(log_folder(cluster.folder / "n2", log)).unlink()
    cluster.start("n2")

    def waits() -> bool:
        return 'commitlog_repair_waiting{log="many"} 1.0' in cluster.get("n2", "/metrics").text

    eventually(waits, what="n2 waits for a peer", timeout_s=30)
    status = cluster.get("n2", f"/v1/logs/{log}/status")
    assert (status.status_code, status.json()["code"]) == (503, "repairing")
    reported = eventually(lambda: events_of(cluster, "n2", log, "repair"), what="the journal records it")
    assert reported[-1]["state"] == "waiting"
    assert cluster.get("n2", "/readyz").status_code == 503
    refused = cluster.append("n2", "x", log=log, params={"timeout_ms": 500})
    assert (refused.status_code, refused.json()["outcome"]) == (503, "not_applied")
    marker = cluster.folder / "n2" / "repairing" / log
    assert marker.exists()
    cluster.kill("n2")  # in the middle of it: the next incarnation goes on
    cluster.start("n2", "n1")
    path = f"/v1/logs/{log}/status"
    eventually(lambda: cluster.get("n2", path).status_code == 200, what="n2 is mended", timeout_s=30)
    eventually(lambda: not marker.exists(), what="n2 is healed", timeout_s=30)
    assert cluster.leader(log) in ("n1", "n2")
    cluster.start("n3")
    cluster.wait_ready()
    cluster.wait_even(log)
    mine, theirs = (log_folder(cluster.folder / node, log) for node in ("n2", "n1"))
    assert bytes_of_log(mine) == bytes_of_log(theirs)


@pytest.mark.rule("R-02")
def test_a_repair_that_was_cut_short_begins_again_before_the_log_is_believed(damaged: Cluster) -> None:
    """The note was written, and the node died before it touched the log: opening alone sees no old damage."""
    cluster, log = damaged, "cut-short"
    for number in range(RECORDS):
        assert cluster.append("n1", f"{number}-{VALUE}", log=log).status_code == 200
    cluster.wait_even(log)
    assert cluster.stop("n3") == 0
    flipped(log_folder(cluster.folder / "n3", log))
    marker = RepairMarker(OsFileSystem(), str(cluster.folder / "n3"), log)
    marker.save(Note("noise", "read", 1, keeps_promises=True, lacks_records=False))
    cluster.start("n3")
    eventually(lambda: healed(cluster, "n3", log), what="n3 is healed", timeout_s=30)
    (repair,) = events_of(cluster, "n3", log, "repair")
    assert repair["batches"] >= 1
    (corruption,) = events_of(cluster, "n3", log, "corruption")
    assert corruption["found_by"] == "start"
    assert not marker.exists


def test_a_log_with_one_replica_is_never_thrown_away(tmp_path: Path) -> None:
    logs = ({"name": "voteless"}, {"name": "holed"})
    with running(tmp_path, 1, logs=logs, sections={"storage": SMALL}) as cluster:
        for log in ("voteless", "holed"):
            for number in range(RECORDS):
                assert cluster.append("n1", f"{number}-{VALUE}", log=log).status_code == 200
        assert cluster.stop("n1") == 0
        folder = log_folder(cluster.folder / "n1", "holed")
        gone = middle(folder)
        kept = gone.read_bytes()
        gone.unlink()
        (log_folder(cluster.folder / "n1", "voteless") / "vote").unlink()
        cluster.start("n1")

        def answers() -> bool:
            return cluster.append("n1", "goes on", log="voteless").status_code == 200

        eventually(answers, what="nobody else could have had the vote", timeout_s=30)
        assert len(cluster.values("n1", log="voteless")) >= RECORDS + 1
        metric = 'commitlog_repair_waiting{log="holed"} 1.0'
        eventually(lambda: metric in cluster.get("n1", "/metrics").text, what="the operator is needed")
        assert cluster.get("n1", "/v1/logs/holed/status").status_code == 503
        assert len(segments(folder)) > 2
        assert cluster.stop("n1") == 0
        gone.write_bytes(kept)  # as an operator would, from a copy
        cluster.start("n1")
        cluster.wait_ready()
        assert len(cluster.values("n1", log="holed")) == RECORDS
        assert not (cluster.folder / "n1" / "repairing" / "holed").exists()


@pytest.mark.rule("R-01", "R-02")
def test_a_created_log_whose_files_were_removed_opens_without_a_vote(tmp_path: Path) -> None:
    """As an operator does who gives up a copy: what it acknowledged and voted is lost."""
    with running(tmp_path, 3) as cluster:
        assert cluster.call("POST", "n1", "/v1/logs", json={"name": "made"}).status_code == 201
        cluster.append("n1", "acknowledged", log="made")
        cluster.wait_even("made")
        assert cluster.stop("n3") == 0
        for place in ("logs", "journal"):
            shutil.rmtree(cluster.folder / "n3" / place / "made")
        cluster.start("n3")

        def doubted() -> bool:
            lines = cluster.lines("n3").splitlines()
            return any("log opens without a vote" in line and "made" in line for line in lines)

        eventually(doubted, what="the doubt is logged")
        cluster.wait_ready("n3")
        cluster.wait_even("made")
        assert cluster.values("n3", "made") == ["acknowledged"]
