"""Operations on a cluster beside appends and reads: logs, members, fences, cursors."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

from app.arguments import check_instance, check_text, check_whole
from app.client.client import CommitlogClient, document_of
from app.client.connection import HttpAnswer
from app.media_types import JSON
from app.names import check_cursor_name, check_log_name


@dataclass(frozen=True)
class Cursor:
    """Position of a reader. version: for `if_match` of the next move. holder: the name that the reader who
    moved it gave itself."""

    name: str
    index: int
    fence: bool
    version: str
    holder: str | None = None


class Operations:
    """Calls of one client, each repeated until it is answered.

    After a lost answer the repeat of set_fence with match_token, of move_cursor or drop_cursor with if_match,
    delete_log or transfer_leader may be refused because the first one was applied: the error's outcome is
    "unknown". All raise ClientError, and ValueError for a name that no log or no cursor can have.
    """

    def __init__(self, client: CommitlogClient) -> None:
        check_instance("client", client, CommitlogClient)
        self._connection = client.connection
        self._log = f"/v1/logs/{quote(client.log, safe='')}"
        self._log_name = client.log

    def members(self) -> list[dict[str, Any]]:
        """Return the nodes of the cluster, learners included."""
        return self._members("GET", "/v1/cluster/members")

    def add_member(
        self, node_id: str, url: str, peer_address: str, *, of: str | None = None
    ) -> list[dict[str, Any]]:
        """Add a node as a learner of every Raft log. of: of this log alone."""
        member = {"id": node_id, "url": url, "peer_address": peer_address}
        return self._members("POST", f"/v1/cluster/members{_of(of)}", member)

    def promote_member(self, node_id: str, *, of: str | None = None) -> list[dict[str, Any]]:
        """Promote a learner to a voter once it has caught up. of: of this log alone."""
        return self._members("POST", f"{_member(node_id)}:promote{_of(of)}")

    def demote_member(self, node_id: str, *, of: str) -> list[dict[str, Any]]:
        """Make a replica of a log in controller mode a learner."""
        return self._members("POST", f"{_member(node_id)}:demote{_of(of)}")

    def remove_member(
        self, node_id: str, *, of: str | None = None, force: bool = False
    ) -> list[dict[str, Any]]:
        """Remove a node. of: from this log alone. force: in controller mode at once, in spite of a loss of
        records."""
        return self._members("DELETE", f"{_member(node_id)}{_of(of, force=force)}")

    def clean_member(self, node_id: str, *, of: str | None = None, force: bool = False) -> dict[str, Any]:
        """Remove the metadata of a lost node, of one log or of all in controller mode. force: also of a
        live node, or of the last copy in sync."""
        return self._call("POST", f"{_member(node_id)}:clean{_of(of, force=force)}")[0]

    def transfer_leader(self, to: str | None = None) -> dict[str, Any]:
        """Transfer the leadership of the client's log to `to`, or to the most up-to-date replica."""
        asked = {"log": self._log_name} if to is None else {"log": self._log_name, "to": to}
        return self._call("POST", "/v1/cluster/leader:transfer", asked)[0]

    def controller_settings(self) -> dict[str, Any]:
        """The active controller, and the settings of the controllers."""
        return self._call("GET", "/v1/cluster/controller")[0]

    def change_controller_settings(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Change settings of the controllers at run time; None: the value of the file."""
        check_instance("changes", changes, Mapping)
        return self._call("PATCH", "/v1/cluster/controller", changes)[0]

    def create_log(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Create a log (docs/api.md §5: name, replication, replicas, ...); a repeat returns the same log."""
        check_instance("settings", settings, Mapping)
        return self._call("POST", "/v1/logs", settings)[0]

    def log(self, name: str) -> dict[str, Any]:
        """Return the settings of a log."""
        return self._call("GET", _path_of_log(name))[0]

    def change_log(self, name: str, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Change settings of a log (docs/api.md §5); the others stay."""
        check_instance("changes", changes, Mapping)
        return self._call("PATCH", _path_of_log(name), changes)[0]

    def delete_log(self, name: str) -> dict[str, Any]:
        """Let the nodes remove a log; its name is free when that is done."""
        return self._call("DELETE", _path_of_log(name))[0]

    def elect(self, candidate: str | None = None, *, unclean: bool = False) -> dict[str, Any]:
        """Elect the master of the client's log. unclean: it may be one that is not in sync."""
        return self._call("POST", f"{self._log}:elect", {"candidate": candidate, "unclean": unclean})[0]

    def set_fence(self, token: str | None, **match_token: str | None) -> dict[str, Any]:
        """Require `token` for every later append (None: no token). match_token=...: only if that token is set
        now."""
        for name, given in {"token": token, **match_token}.items():
            if given is not None:
                check_text(name, given)
        return self._call("POST", f"{self._log}:fence", {"token": token, **match_token})[0]

    def cursors(self) -> list[Cursor]:
        """Return all cursors of the log by name, those of the service (`__...`) too."""
        found = self._call("GET", f"{self._log}/cursors")[0]["cursors"]
        return [_cursor(each, f'"{each["version"]}"') for each in found]

    def cursor(self, name: str) -> Cursor:
        return self._cursor("GET", name)

    def move_cursor(
        self,
        name: str,
        index: int,
        *,
        fence: bool = False,
        if_match: str | None = None,
        holder: str | None = None,
    ) -> Cursor:
        """Set the position of the reader to `index`. if_match: only from that version on; "": only if
        there is none. holder: a name of this reader."""
        check_whole("index", index, 0)
        named = {} if holder is None else {"holder": holder}
        return self._cursor("PUT", name, {"index": int(index), "fence": fence, **named}, if_match)

    def drop_cursor(self, name: str, *, if_match: str | None = None) -> Cursor:
        return self._cursor("DELETE", name, None, if_match)

    def trim(self, until_index: int, *, force: bool = False) -> dict[str, Any]:
        """Remove the records below until_index. force: even if a reader's fence is before it."""
        check_whole("until_index", until_index, 0)
        return self._call("POST", f"{self._log}:trim", {"until_index": int(until_index), "force": force})[0]

    def verify(
        self, from_index: int | None = None, until_index: int | None = None, *, deep: bool = False
    ) -> dict[str, Any]:
        """Compare the replicas, for some seconds: with `has_more` continue at the answer's `until_index`."""
        asked = {"from_index": from_index, "until_index": until_index, "deep": deep}
        return self._call("POST", f"{self._log}:verify", asked, wait_s=60.0)[0]

    def _cursor(
        self, method: str, name: str, body: Mapping[str, Any] | None = None, if_match: str | None = None
    ) -> Cursor:
        headers = {}
        if if_match is not None:
            check_text("if_match", if_match)
            headers = {"If-Match": if_match} if if_match else {"If-None-Match": "*"}
        check_cursor_name(name)
        found, answer = self._call(method, f"{self._log}/cursors/{quote(name, safe='')}", body, headers)
        return _cursor(found, answer.headers["ETag"])

    def _members(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
        return list(self._call(method, path, body)[0]["members"])

    def _call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        wait_s: float = 10.0,
    ) -> tuple[dict[str, Any], HttpAnswer]:
        answer = self._connection.call(
            method,
            path,
            headers={**(headers or {}), "Content-Type": JSON},
            body=None if body is None else json.dumps(body).encode(),
            wait_s=wait_s,
        )
        return document_of(answer), answer


def _cursor(found: Mapping[str, Any], version: str) -> Cursor:
    return Cursor(found["name"], found["index"], found["fence"], version, found.get("holder"))


def _path_of_log(name: str) -> str:
    check_log_name(name)
    return f"/v1/logs/{name}"


def _member(node_id: str) -> str:
    check_text("node_id", node_id)
    return f"/v1/cluster/members/{quote(node_id, safe='')}"


def _of(log: str | None, *, force: bool = False) -> str:
    """Return the query that names one log."""
    asked = ([] if log is None else [("log", log)]) + ([("force", "true")] if force else [])
    return f"?{urlencode(asked)}" if asked else ""
