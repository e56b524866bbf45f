"""`commitlog rebuild-controllers` on folders: what it copies, and what it reports as not known."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from app.cli.main import cli
from app.controller.events import LogCreated, encode_event
from app.controller.metadata import LogSpec
from app.node.metadata.folders import LogFolders
from app.node.repair.marker import Note, RepairMarker
from storage.files import OsFileSystem
from storage.format.batch import log_id_of, stamp
from storage.format.records import RecordColumns, encode_body
from storage.log.commitlog import Commitlog, CommitlogConfig
from storage.log.hard_state import HardState, HardStateFile
from storage.log.manifest import Manifest, ManifestFile
from tests.support.disk_steps import record_disk_steps

NODE = """
[[nodes]]
id = "{id}"
listen = "127.0.0.1:{port}"
url = "http://127.0.0.1:{port}"
peer_listen = "127.0.0.1:{peer_port}"
peer_address = "127.0.0.1:{peer_port}"
data = "{data}"
"""


def cluster(folder: Path) -> Path:
    """Controllers c1 to c3 and a broker n1."""
    text = '[cluster]\nid = "k"\n\n[controller]\nnodes = ["c1", "c2", "c3"]\n\n[[logs]]\nname = "default"\n'
    for place, node in enumerate(("c1", "c2", "c3", "n1")):
        text += NODE.format(id=node, port=25_100 + place, peer_port=25_200 + place, data=folder / node)
    config = folder / "cluster.toml"
    config.write_text(text)
    return config


def write_log(data: Path, *, log_id: int, epoch: int) -> None:
    """A copy of the log "orders" whose node knows that master epoch."""
    files, folder = OsFileSystem(), f"{data}/logs/orders"
    files.make_folders(folder)
    HardStateFile(files, f"{folder}/vote").save(HardState(epoch))
    ManifestFile(files, f"{folder}/manifest").save(Manifest(log_id))


def write_copy(data: Path) -> None:
    """A copy of the controllers' log that has one event."""
    files, folder, log_id = OsFileSystem(), f"{data}/logs/__controller", log_id_of("k", "__controller")
    files.make_folders(folder)
    HardStateFile(files, f"{folder}/vote").save(HardState(3))
    records = RecordColumns()
    spec = LogSpec(replication="controller", replicas=("n1",))
    records.add(encode_event(LogCreated(log="orders", spec=spec, log_id=5, generation=0)))
    log = Commitlog.open(files, folder, log_id=log_id, config=CommitlogConfig())
    batch = stamp(
        encode_body(records),
        log_id=log_id,
        base_index=log.next_index,
        term=3,
        timestamp_ms=1,
        offset=log.end_offset,
        previous_chain=log.last_chain,
    )
    log.append((batch,))
    log.close()


def test_the_controllers_get_the_copy_of_a_broker(tmp_path: Path) -> None:
    config = cluster(tmp_path)
    command = ["rebuild-controllers", "--config", str(config), "--json"]
    refused = CliRunner().invoke(cli, command)
    assert refused.exit_code == 1
    assert "no folder here has a copy" in refused.output
    write_copy(tmp_path / "n1")
    done = CliRunner().invoke(cli, command)
    assert done.exit_code == 0, done.output
    answer = json.loads(done.output)
    assert (answer["source"], answer["copied_to"], answer["doubts"]) == ("n1", ["c1", "c2", "c3"], [])
    assert answer["logs"][0]["name"] == "orders"
    assert answer["not_known"] == "all changes committed after record 0"
    assert (tmp_path / "c2" / "logs" / "__controller" / "vote").exists()
    again = CliRunner().invoke(cli, command)
    assert again.exit_code == 1
    assert "start them" in again.output


def test_a_controller_that_got_the_copy_does_not_find_its_earlier_doubt_after_a_power_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = cluster(tmp_path)
    write_copy(tmp_path / "n1")
    marker = RepairMarker(OsFileSystem(), str(tmp_path / "c2"), "__controller")
    marker.save(Note("damage", "read", 1))
    synced = record_disk_steps(monkeypatch, "link")
    done = CliRunner().invoke(cli, ["rebuild-controllers", "--config", str(config), "--json"])
    assert done.exit_code == 0, done.output
    assert not marker.exists
    assert str(tmp_path / "c2" / "repairing") in synced


def test_logs_that_were_set_aside_are_neither_copied_nor_removed(tmp_path: Path) -> None:
    """The controllers were damaged before they were lost: the operator may need what was kept of them."""
    config = cluster(tmp_path)
    write_copy(tmp_path / "n1")
    for name in ("n1", "c1"):
        aside = tmp_path / name / "logs" / "__controller" / "aside"
        aside.mkdir(parents=True)
        (aside / "whole").write_bytes(b"")
    done = CliRunner().invoke(cli, ["rebuild-controllers", "--config", str(config), "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.output)["copied_to"] == ["c1", "c2", "c3"]
    kept = [(tmp_path / name / "logs" / "__controller" / "aside").exists() for name in ("n1", "c1", "c2")]
    assert kept == [True, True, False]


def test_a_damaged_vote_file_of_a_log_is_reported(tmp_path: Path) -> None:
    config = cluster(tmp_path)
    write_copy(tmp_path / "n1")
    vote = tmp_path / "n1" / "logs" / "orders" / "vote"
    vote.parent.mkdir()
    vote.write_bytes(b"damaged")
    command = ["rebuild-controllers", "--config", str(config)]
    copies = [tmp_path / name / "logs" / "__controller" / "vote" for name in ("c1", "c2", "c3")]
    done = CliRunner().invoke(cli, command)
    assert done.exit_code == 0, done.output
    assert "WARNING log orders: the newest master epoch or SyncStateSet of n1 is not known" in done.output
    assert "gets a master once all of its replicas have reported" in done.output
    for copy in copies:  # the controllers are lost again
        copy.unlink()
    done = CliRunner().invoke(cli, [*command, "--json"])
    assert json.loads(done.output)["doubts"] == [{"log": "orders", "node": "n1", "known_epoch": None}]


@pytest.mark.rule("C-09")
@pytest.mark.parametrize(("log_id", "is_kept"), [(5, True), (6, False)])
def test_a_node_that_keeps_a_copy_of_a_log_becomes_its_replica(
    tmp_path: Path, log_id: int, is_kept: bool
) -> None:
    """It was added after the copy of the metadata: otherwise it would remove acknowledged records."""
    config = cluster(tmp_path)
    config.write_text(
        config.read_text() + NODE.format(id="n2", port=25_104, peer_port=25_204, data=tmp_path / "n2")
    )
    write_copy(tmp_path / "n1")
    write_log(tmp_path / "n2", log_id=log_id, epoch=0)
    command = ["rebuild-controllers", "--config", str(config), "--json"]
    answer = json.loads(CliRunner().invoke(cli, command).output)
    assert answer["unnamed"] == ([{"log": "orders", "node": "n2"}] if is_kept else [])


@pytest.mark.rule("C-09")
def test_a_log_whose_creation_is_lost_is_reported(tmp_path: Path) -> None:
    config = cluster(tmp_path)
    write_copy(tmp_path / "n1")
    folders = LogFolders(OsFileSystem(), str(tmp_path / "n1"))
    folders.finish_removals()
    folders.prepare("late", 1_000, 7)
    command = ["rebuild-controllers", "--config", str(config)]
    done = CliRunner().invoke(cli, command)
    assert done.exit_code == 0, done.output
    assert "WARNING log late: n1 keeps its files" in done.output
