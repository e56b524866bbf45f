"""Appends that another node of the cluster carries to this one, the leader of their log.

The node that the client called has checked the token and its limits. The handler of all appends begins the
append here, as a request with `Commitlog-No-Forward`.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import msgspec

from app.api.append.call import AppendCall, AppendHead
from app.api.append.carried_head import decode_head
from app.api.append.group_answers import GroupAnswers
from app.api.append.groups import AppendGroups
from app.api.http.messages import Response, given_or_new_id
from app.errors import CommitlogError
from app.node.network.append_messages import DECLINED, CarriedAnswer, CarriedAppend
from app.node.network.http_forwarder import OF_THE_CONNECTION

HEADS_MAX: Final = 512  # remembered; beyond it all are forgotten


class AppendsOfPeers:
    """The appends that this node takes from others. Owned by the event loop."""

    def __init__(self, groups: AppendGroups) -> None:
        self._groups = groups
        self._handler = groups.handler
        self._heads: dict[bytes, AppendHead] = {}

    def serve(self, append: CarriedAppend, done: Callable[[CarriedAnswer], None]) -> None:
        """Begin an append; done(its answer), once. It is declined where an HTTP call would be refused before
        its body: then the peer sends it again as such a call."""
        reserved_bytes = len(append.body)
        try:
            head = self._head(append.head)
            self._handler.check_log(head.log)
            parameters = replace(head.parameters, timeout_ms=append.timeout_ms)
            self._handler.in_flight.enter(reserved_bytes)
        except (CommitlogError, msgspec.MsgspecError, UnicodeDecodeError):
            done(CarriedAnswer(append.id, DECLINED))
            return
        request_id = given_or_new_id(append.request_id)
        call = AppendCall(head, append.body, request_id, reserved_bytes, parameters)
        self._groups.begin(call, _Sender(append.id, done))

    def _head(self, raw: bytes) -> AppendHead:
        head = self._heads.get(raw)
        if head is None:
            found = decode_head(raw)
            head = AppendHead(found.log, f"/v1/logs/{found.log}/records", found.query, found.headers)
            if len(self._heads) >= HEADS_MAX:
                self._heads.clear()
            self._heads[raw] = head
        return head


class _Sender:
    """The source of one append: the node that has carried it."""

    __slots__ = ("_done", "_id")

    def __init__(self, append_id: int, done: Callable[[CarriedAnswer], None]) -> None:
        self._id = append_id
        self._done = done

    def answer(self, _call: AppendCall, answer: Response) -> None:
        headers = tuple(each for each in answer.headers if each[0] not in OF_THE_CONNECTION)
        self._done(CarriedAnswer(self._id, answer.status, headers, answer.body))

    def answer_in_group(self, _call: AppendCall, answers: GroupAnswers, first_index: int, count: int) -> None:
        self._done(CarriedAnswer(self._id, answers.status, answers.headers, answers.body(first_index, count)))
