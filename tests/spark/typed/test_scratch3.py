import shutil
import pyarrow.compute as pc, pyarrow as pa
from functools import partial
from spark_jobs.typed.claimed_table import ClaimedTable
from spark_jobs.tables.local_commits import LocalTable
from tests.spark.typed.test_moved_letters import *
import itertools
N=itertools.count(1)
def ins(self, rows):
    have = set(indexes(Path(self.path).parent, DEAD_LETTERS))
    new = [i for i in rows["index"].to_pylist() if i not in have]
    rows = rows.filter(pc.is_in(rows["index"], pa.array(new)))
    print("INSERT", new)
    if new:
        assert LocalTable(self.path, lambda p: None).append(rows.select(DEAD_LETTERS.schema.fieldNames()), statistics=DEAD_LETTERS.statistics, application="merge", claim=next(N), note={})
@pytest.mark.parametrize("what", ["records","dead_letters","purge"])
@pytest.mark.parametrize("moved", [[5, 6, 8], [5, 6], [6, 8], [8]])
def test_x(log, replicas, typed, tmp_path, moved, what, monkeypatch):
    monkeypatch.setattr(ClaimedTable, "insert_missing", ins)
    client = LogReads([replica.url for replica in replicas], "default")
    typed.extend(log.next_index)
    move(typed, tmp_path, moved)
    if what == "purge":
        move2(tmp_path)
    else:
        shutil.rmtree(tmp_path/what)
    other = TypedTables(no_spark(), client, lambda table: str(tmp_path / table.name), follows=False)
    for until in (7, log.next_index):
        other.extend(until)
    older, newer = (indexes(tmp_path, each.records()) for each in typed.decoder.layout)
    letters = indexes(tmp_path, DEAD_LETTERS)
    print(older,newer,letters)
    assert sorted(older+newer+letters)==[2,4,5,6,7,8]
def move2(folder):
    def left(snapshot):
        return Rewrite(list(snapshot.files), [], "Overwrite")
    LocalTable(str(folder/"dead_letters"), lambda p: None, keeps_files=True).rewrite(left, statistics=DEAD_LETTERS.statistics, claim=None, note={})
