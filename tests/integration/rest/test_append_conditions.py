"""Appends with conditions, keys, producers and acks, at a leader and through a follower."""

import uuid

import httpx

from tests.integration.rest.test_append_routes import post, refused
from tests.support.cluster import Cluster


def test_match_index_and_match_term(cluster: Cluster) -> None:
    leader = cluster.leader()
    status = cluster.status(leader)
    held = {"match_index": status["next_index"], "match_term": status["term"]}
    assert cluster.append(leader, "first", params=held).status_code == 200
    problem = refused(cluster.append(leader, "second", params=held), 412, "index-mismatch")
    assert problem["expected_index"] == status["next_index"]
    assert problem["next_index"] == status["next_index"] + 1
    refused(cluster.append(leader, "x", params={"match_term": status["term"] + 1}), 412, "term-mismatch")
    both = {"match_term": status["term"] + 1, "match_index": 0}
    refused(cluster.append(leader, "x", params=both), 412, "term-mismatch")


def test_a_key_gets_the_first_answer_again(cluster: Cluster) -> None:
    key = {"Idempotency-Key": uuid.uuid4().hex}
    first = cluster.append(cluster.leader(), "once", "more", headers=key)
    again = cluster.append(cluster.follower(), "once", "more", headers=key)
    assert again.status_code == 200
    same = ("first_index", "last_index", "count", "term", "first_offset", "next_offset", "timestamp")
    assert [first.json()[name] for name in same] == [again.json()[name] for name in same]
    assert (first.json()["replayed"], again.json()["replayed"]) == (False, True)
    lines = post(cluster, '{"value":"once"}\n{"value":"more"}', "application/x-ndjson", headers=key)
    assert lines.json()["replayed"] is True
    refused(cluster.append(cluster.leader(), "other", headers=key), 422, "idempotency-key-reused")
    conditioned = cluster.append(cluster.leader(), "once", "more", headers=key, params={"match_term": 1})
    refused(conditioned, 422, "idempotency-key-reused")


def test_producers_count_their_appends(cluster: Cluster) -> None:
    name = uuid.uuid4().hex

    def send(sequence: int, epoch: int = 0, **more: str) -> httpx.Response:
        params = {"producer_id": name, "producer_epoch": epoch, "producer_sequence": sequence, **more}
        return cluster.append(cluster.leader(), f"{epoch}/{sequence}", params=params)

    assert send(7).json()["replayed"] is False
    assert send(8).status_code == 200
    assert send(7).json()["replayed"] is True
    assert refused(send(10), 409, "sequence-gap")["expected_sequence"] == 9
    assert send(10, producer_allow_gap="true").status_code == 200
    assert send(0, epoch=1).status_code == 200
    refused(send(11), 409, "producer-fenced")


def test_acks_leader_answers_202_and_all_waits_for_every_voter(cluster: Cluster) -> None:
    early = cluster.append(cluster.leader(), "early", params={"acks": "leader"})
    assert (early.status_code, early.json()["acks"]) == (202, "leader")
    everybody = cluster.append(cluster.leader(), "everybody", params={"acks": "all"})
    assert (everybody.status_code, everybody.json()["acks"]) == (200, "all")
    marks = cluster.get(cluster.leader(), "/v1/logs/default/watermarks").json()
    ((_, peers),) = marks.items()
    assert min(peers.values()) >= everybody.json()["last_index"]
