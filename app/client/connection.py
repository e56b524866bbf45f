"""HTTP calls to the nodes of a cluster: finds the leader, retries with growing pauses, gives up in the
end."""

import io
import json
import math
import os
import random
import re
import ssl
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from http import HTTPStatus
from http.client import RemoteDisconnected
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlencode

import urllib3

from app.arguments import check_number, check_text
from app.client.errors import ClientError, InvalidAnswer, NoAnswer, NoReplica, Problem, Untrusted, problem_of
from app.client.retry_notices import RetryNotices
from app.names import check_token
from storage.units import KIB, MIB

DEFAULT_ENDPOINT = "http://127.0.0.1:8101"
_CONNECT_TIMEOUT_S = 2.0
# Part of a body that _CONNECT_TIMEOUT_S, or the last call's read timeout, limits.
_SENT_AT_ONCE_BYTES = 64 * KIB
_ANSWER_DIGITS = 9  # of the size of an answer in bytes: no page of 64 MiB is larger than that in any form
_WITHOUT_BODY = (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED)
_HTTP_1_0 = 10  # as urllib3 writes it
_CHUNK_BYTES = MIB  # of an answer that does not announce its size
_KEPT_CONNECTIONS = 64  # of one node, between calls; urllib3 closes more, with a warning for each
_NAMED_ENDPOINTS = 5  # at most, in an error
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 1.0
AVOID_S = 1.0  # for this time a node that did not answer is not used as leader, even if others report it
LEARN_EACH_S = 60.0  # the nodes of the cluster, the id of a learned one, and a leader that never answered
ANSWER_S = 5.0  # that the service may take for a call that does not wait
SLACK_S = 5.0  # time that a call waits for its answer beyond the service's own time limit

NEVER_SENT = (
    urllib3.exceptions.NewConnectionError,
    urllib3.exceptions.ConnectTimeoutError,
    urllib3.exceptions.LocationValueError,  # not an address
)
_PERMANENT = (  # refusals that prove that an attempt before them was not stored, and never will be
    "idempotency-key-reused",
    "term-mismatch",
    "index-mismatch",
)
_OTHER_NAME = "the URL needs a name or an address that is in the certificate"
_ADVICE = {  # by OpenSSL's code, where no other authority would help
    9: "compare the clocks of this machine and of the node",  # not yet valid
    10: "the node needs a new certificate, and a restart",  # expired
    62: _OTHER_NAME,
    64: _OTHER_NAME,
}
Result = TypeVar("Result")


@dataclass(frozen=True)
class HttpAnswer:
    """Answer of a node with its whole body. The names of headers are found in any case."""

    status: int
    headers: Mapping[str, str]
    data: bytes

    def json(self) -> Any:
        """Return the document in the body. Raises ValueError."""
        try:
            return json.loads(self.data)
        except RecursionError as error:
            raise ValueError(str(error)) from error


class ClusterConnection:
    """Calls of one client to the nodes of a cluster. May be shared by threads.

    endpoints: base URLs, at least one. The first node that answers is asked for the others, which are tried
    after the given ones; a later answer replaces them. A node that was not given gets a call only after it
    has reported the id of this cluster: its address may belong to another one by now. give_up_s: time for
    which a call is retried before its error is raised.
    waits_for_start: False: when no node has answered yet and all of them refuse the connection, their
    machines run without them, and the error is raised at once. learns_nodes: False: only `endpoints` are
    asked. Raises ValueError for an endpoint that is not one base URL with its scheme, and for a token that no
    header can carry.
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        *,
        token: str | None = None,
        give_up_s: float = 30.0,
        waits_for_start: bool = True,
        learns_nodes: bool = True,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if not isinstance(endpoints, Iterable) or isinstance(endpoints, bytes):
            raise TypeError(f"endpoints must be a list of base URLs, got {endpoints!r}")
        self.endpoints = [checked_endpoint(endpoint) for endpoint in endpoints]
        if not self.endpoints:
            raise ValueError("at least one endpoint is required")
        check_number("give_up_s", give_up_s, limited=False)
        self.give_up_s = give_up_s
        self.leader: str | None = None
        self.nodes: list[str] = []  # of the cluster, as learned
        self._given = tuple(self.endpoints)
        self.cluster: str | None = None  # its id, as learned
        self._proven: dict[str, float] = {}  # endpoints that have reported it: until when that counts
        self._waits = waits_for_start
        self._learn_at = -math.inf if learns_nodes else math.inf
        if token is not None:
            check_token(token)
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._clock, self._sleep = clock, sleep
        self._jitter = random.Random()
        self._at = 0
        self._avoided: dict[str, float] = {}
        self._answered: set[str] = set()  # endpoints that have answered, so their scheme is right
        self._pool, self._process = _new_pool(), os.getpid()

    def expect(self, cluster: str | None, learned: Sequence[str]) -> None:
        """Take endpoints as learned, not given: they were learned earlier, of the cluster with that id."""
        self.cluster = cluster
        self._given = tuple(url for url in self.endpoints if url not in learned)

    def close(self) -> None:
        """Close every connection."""
        self._own_pool().clear()

    def _own_pool(self) -> urllib3.PoolManager:
        """Return the pool of this process: after a fork, two processes would mix their answers on a shared
        connection."""
        if self._process != os.getpid():
            self._pool, self._process = _new_pool(), os.getpid()
        return self._pool

    def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        to_leader: bool = False,
        wait_s: float = ANSWER_S,
    ) -> HttpAnswer:
        """Return the first good answer of any node. Raises ClientError: the last one, or at once one that a
        retry cannot fix. A node that is not trusted is passed over; Untrusted is raised if all are so.

        The call is retried even when the outcome of the previous attempt is unknown, so it must be safe to
        repeat. The error's outcome is that of all attempts: most refusals are certain of their own attempt
        only, and the earlier one may be stored, or still be on its way. to_leader: ask the leader directly
        when it is known. wait_s: how long the service itself may take to answer.
        """
        give_up_at = self._clock() + self.give_up_s
        notices = RetryNotices(self._clock(), give_up_at)
        pause_s = FIRST_PAUSE_S
        doubtful: ClientError | None = None  # a write that may have been stored, whatever followed
        answered: Problem | None = None  # the newest refusal of a node
        tried = refused = hopeless = 0
        while True:
            endpoint = self._choose(to_leader)
            try:
                self.check_cluster(endpoint)
                answer = self.once(
                    method, endpoint, path, query=query, headers=headers, body=body, wait_s=wait_s
                )
                self._waits = True
                self._learn_nodes(endpoint)
                return answer
            except ClientError as error:
                is_refused = isinstance(error, NoAnswer) and error.refused
                refused = refused + 1 if is_refused else 0
                answered = error if isinstance(error, Problem) else answered
                if error.outcome != "not_applied" and method != "GET":
                    doubtful = error
                if refused >= len(self.endpoints) and not self._waits:
                    raise _after(doubtful, self._none_answers(error), decided=False) from None
                hopeless = hopeless + 1 if isinstance(error, Untrusted) else 0
                self._move_on(endpoint)
                tried += 1
                # the other nodes are asked at once, then all of them again after a pause
                if tried % len(self.endpoints) != 0 and isinstance(error, NoAnswer):
                    wait = 0.0
                else:
                    wait = pause_s * self._jitter.uniform(0.5, 1.0)
                    pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
                if isinstance(error, Problem):
                    wait = max(wait, min(error.retry_after_s, LONGEST_PAUSE_S))
                is_final = hopeless >= len(self.endpoints) if hopeless else not error.retryable
                if is_final or self._clock() + wait > give_up_at:
                    decided = to_leader and _is_permanent(error)
                    last = answered if is_refused and answered is not None else error
                    raise _after(doubtful, last, decided=decided) from None
                notices.failed(self._clock(), error)
                self._sleep(wait)

    def _none_answers(self, error: ClientError) -> ClientError:
        """Return the error of a call that every endpoint has refused; `error` is of the last one."""
        if len(self.endpoints) == 1:
            return error
        named = ", ".join(self.endpoints[:_NAMED_ENDPOINTS])
        if (others := len(self.endpoints) - _NAMED_ENDPOINTS) > 0:
            named += f" and {others} others"
        return NoAnswer(f"no node answers at {named} (connection refused)", sent=False, refused=True)

    def first_good(self, ask: Callable[[str], Result]) -> Result:
        """Return the first result of `ask`, called with the endpoint that answered last, then with the others
        in turn, in rounds.

        For reads that any replica may answer: `ask` makes its calls by `once`, checks the answers, and raises
        ClientError. Another node, or a later round, may answer after NoAnswer, 421, 429 and 5xx. After 410
        (trimmed) the other nodes are asked once: a replica may begin earlier. Raises NoReplica after
        give_up_s, the 410 with the lowest begin_index, Untrusted if no node can be trusted, and other errors
        at once.
        """
        for failed in self.rounds():
            trimmed: list[Problem] = []
            for _ in self.endpoints:
                endpoint = self._current()
                try:
                    return ask(endpoint)
                except ClientError as error:
                    if isinstance(error, Problem) and error.status == 410:
                        trimmed.append(error)
                    elif error.may_pass:
                        failed(endpoint, error)
                    else:
                        raise
                self._at = (self._at + 1) % len(self.endpoints)
            if trimmed:
                raise min(trimmed, key=lambda error: int(error.document.get("begin_index", 0)))
        raise AssertionError("rounds end by raising")

    def rounds(self) -> Iterator[Callable[[str, ClientError], None]]:
        """Yield once per round over the endpoints, with growing pauses between them: the function takes an
        endpoint and its error. Raises NoReplica with the errors of the last round after give_up_s, and
        Untrusted after a round of nothing else."""
        give_up_at = self._clock() + self.give_up_s
        notices = RetryNotices(self._clock(), give_up_at)
        pause_s = FIRST_PAUSE_S
        while True:
            errors: list[tuple[str, ClientError]] = []
            yield lambda endpoint, error: errors.append((endpoint, error))  # noqa: B023 used within the round
            if errors and all(isinstance(error, Untrusted) for _, error in errors):
                raise errors[-1][1]
            if self._clock() + pause_s > give_up_at:
                raise NoReplica(errors, self.give_up_s)
            notices.failed(self._clock(), errors[-1][1] if errors else "no replica answers")
            self._sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def once(
        self,
        method: str,
        endpoint: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        wait_s: float = ANSWER_S,
    ) -> HttpAnswer:
        """Return one answer of one node. Raises NoAnswer, Untrusted and Problem.

        The time limits are of each part that is sent or received: a slow network may take longer as a whole.
        """
        url = f"{checked_endpoint(endpoint)}{path}" + (f"?{urlencode(query)}" if query else "")
        timeout = urllib3.Timeout(connect=_CONNECT_TIMEOUT_S, read=wait_s + SLACK_S)
        sent = {**self._headers, **(headers or {})}
        content: bytes | io.BytesIO | None = body
        if body is not None and len(body) > _SENT_AT_ONCE_BYTES:  # in parts: the time limit is of each
            content = io.BytesIO(body)
            sent["Content-Length"] = str(len(body))
        try:
            answer = _received(
                endpoint,
                self._own_pool().request(
                    method, url, headers=sent, body=content, timeout=timeout, preload_content=False
                ),
            )
        except NEVER_SENT as error:
            self._forget(endpoint)
            refused = isinstance(error.__context__, ConnectionRefusedError)
            raise NoAnswer(
                f"{endpoint} does not answer ({_reason(error)})", sent=False, refused=refused
            ) from error
        except urllib3.exceptions.HTTPError as error:
            self._forget(endpoint)
            if isinstance(error.__context__, ssl.SSLCertVerificationError):
                advice = _ADVICE.get(error.__context__.verify_code) or _authority_advice()
                raise Untrusted(
                    f"the certificate of {endpoint} is not trusted ({_reason(error)}); {advice}"
                ) from error
            if getattr(error.__context__, "reason", None) == "WRONG_VERSION_NUMBER":
                plain = endpoint.replace("https://", "http://", 1)
                raise Untrusted(f"{endpoint} does not use TLS; its URL is {plain}") from error
            if isinstance(error, urllib3.exceptions.ReadTimeoutError):
                raise NoAnswer(
                    f"{endpoint} did not answer within {wait_s + SLACK_S:g} s", sent=True
                ) from error
            raise NoAnswer(
                f"{endpoint} closed the connection before it answered ({_reason(error)})"
                + ("" if endpoint in self._answered else _tls_advice(endpoint, error)),
                sent=True,
            ) from error
        self._answered.add(endpoint)
        self._learn(answer)
        if answer.status >= 400:
            raise problem_of(answer.status, answer.data, answer.headers.get("Retry-After"))
        if answer.status >= 300 and answer.status != HTTPStatus.NOT_MODIFIED:
            place = answer.headers.get("Location")
            detail = f"{endpoint} redirects to {place}, which is not followed: use the URL of a node"
            raise Problem(answer.status, {"detail": detail})
        return answer

    def _learn_nodes(self, endpoint: str) -> None:
        """Ask a node that has answered for the others, now and then. Without an answer nothing is learned."""
        if self._clock() < self._learn_at:
            return
        self._learn_at = self._clock() + LEARN_EACH_S
        try:
            document = self.once("GET", endpoint, "/v1/cluster").json()
            urls = [str(node["url"]).rstrip("/") for node in document["nodes"]]
            cluster = document.get("id")
        except (ClientError, ValueError, KeyError, TypeError, AttributeError):
            return  # the call itself has succeeded
        self.cluster = cluster
        self.nodes = [url for url in urls if is_base_url(url)]
        current = self._current()
        self.endpoints = [*self._given, *(url for url in self.nodes if url not in self._given)]
        self._at = self.endpoints.index(current) if current in self.endpoints else 0

    def check_cluster(self, endpoint: str) -> None:
        """Ask a node that was learned for the id of its cluster, after each failure and now and then: what
        becomes of an address between two calls is not noticed. Raises NoAnswer."""
        if self.cluster is None or endpoint in self._given:
            return
        if self._clock() < self._proven.get(endpoint, -math.inf):
            return
        try:
            found = self.once("GET", endpoint, "/v1/cluster").json()["id"]
        except NoAnswer as error:
            error.outcome = "not_applied"  # the call itself was not sent
            raise
        except (Problem, ValueError, KeyError, TypeError) as error:
            raise NoAnswer(f"{endpoint} does not report its cluster ({error})", sent=False) from error
        if found != self.cluster:
            raise NoAnswer(f"{endpoint} belongs to the cluster {found}, not {self.cluster}", sent=False)
        self._proven[endpoint] = self._clock() + LEARN_EACH_S

    def _current(self) -> str:
        endpoints = self.endpoints  # another thread may replace the list
        return endpoints[self._at % len(endpoints)]

    def _choose(self, to_leader: bool) -> str:
        if to_leader and self.leader is not None:
            return self.leader
        return self._current()

    def _move_on(self, endpoint: str) -> None:
        """After a failure: forget a leader that failed, otherwise use the next endpoint."""
        if endpoint == self.leader:
            self.leader = None
        if endpoint == self._current():
            self._at = (self._at + 1) % len(self.endpoints)

    def _forget(self, endpoint: str) -> None:
        """After no answer: do not use it as leader for a while. One that never answered may be an address
        behind a proxy that this client cannot reach, and each attempt costs _CONNECT_TIMEOUT_S."""
        self._avoided[endpoint] = self._clock() + (AVOID_S if endpoint in self._answered else LEARN_EACH_S)
        self._proven.pop(endpoint, None)
        if self.leader == endpoint:
            self.leader = None

    def _learn(self, answer: HttpAnswer) -> None:
        leader = (answer.headers.get("Commitlog-Leader") or "").rstrip("/")
        if is_base_url(leader) and self._avoided.get(leader, 0.0) < self._clock():
            self.leader = leader


def _new_pool() -> urllib3.PoolManager:
    return urllib3.PoolManager(
        retries=False, num_pools=16, maxsize=_KEPT_CONNECTIONS, blocksize=_SENT_AT_ONCE_BYTES
    )


def _received(endpoint: str, answer: urllib3.BaseHTTPResponse) -> HttpAnswer:
    """Return an answer with its body, and its connection to the pool.

    Raises HTTPError, and InvalidAnswer: for a size that no memory has, for a head that ends before the size,
    and for an interim answer (1xx), whose connection still gets the final one. A proxy may name no size: an
    answer of HTTP/1.0, or with `Connection: close`, which nodes send last, ends with its connection.
    """
    size = answer.headers.get("Content-Length", "").partition(",")[0]  # urllib3 refuses two that differ
    ends_by_close = answer.version == _HTTP_1_0 or answer.headers.get("Connection", "").lower() == "close"
    try:
        if answer.status < HTTPStatus.OK:
            raise InvalidAnswer(f"{endpoint} sent an interim response ({answer.status})")
        if len(size) > _ANSWER_DIGITS:
            raise InvalidAnswer(f"{endpoint} announced a response of {size[:40]} bytes")
        is_chunked = answer.headers.get("Transfer-Encoding", "").lower() == "chunked"
        # without decode_content urllib3 returns the chunks of a compressed answer as they are
        pieces = answer.stream(_CHUNK_BYTES, decode_content=True) if is_chunked else (answer.read(),)
        data = b"".join(pieces)
        if not (size or is_chunked or data or ends_by_close or answer.status in _WITHOUT_BODY):
            raise InvalidAnswer(f"{endpoint} closed the connection within the head of its response")
    except BaseException as error:
        answer.close()
        if isinstance(error, ValueError):  # a chunk of a negative size
            raise InvalidAnswer(f"{endpoint} sent an invalid response ({error})") from error
        raise
    answer.release_conn()  # an answer without a body is not read, and still has it
    return HttpAnswer(answer.status, answer.headers, data)


def _after(doubtful: ClientError | None, error: ClientError, *, decided: bool) -> ClientError:
    """Return the error of a call. doubtful: of an earlier attempt that may have been applied. decided: a
    refusal proves that it was not."""
    if doubtful is None:
        return error
    if error.retryable or not isinstance(error, Problem):
        return doubtful
    if not decided:
        error.outcome = doubtful.outcome  # the refusal is of the last attempt alone
    return error


def _is_permanent(error: ClientError) -> bool:
    return isinstance(error, Problem) and error.code in _PERMANENT


def checked_endpoint(endpoint: str) -> str:
    """Return the base URL without a slash at its end. Raises TypeError and ValueError."""
    check_text("an endpoint", endpoint)
    if not is_base_url(endpoint):
        raise ValueError(f"an endpoint is a base URL such as {DEFAULT_ENDPOINT}, got {shown(endpoint)}")
    return endpoint.rstrip("/")


@lru_cache(maxsize=256)
def is_base_url(endpoint: str) -> bool:
    """Return whether a text is one URL of a node, with its scheme, and without a user: a call has a token."""
    try:
        url = urllib3.util.parse_url(endpoint)
    except urllib3.exceptions.LocationParseError:
        return False
    is_whole = url.query is None and url.fragment is None  # a path would be added behind them
    return url.scheme in ("http", "https") and bool(url.host) and url.port != 0 and is_whole and not url.auth


def shown(endpoint: str) -> str:
    """Return an endpoint for a message that refuses it: without a password."""
    return repr(re.sub(r"//.*@", "//…@", endpoint, flags=re.DOTALL))


def _tls_advice(endpoint: str, error: Exception) -> str:
    """Return what a person may do about a listener with TLS, which ends a request without it silently."""
    if not endpoint.startswith("http://") or not isinstance(error.__context__, RemoteDisconnected):
        return ""
    return f"; if it uses TLS, its URL is {endpoint.replace('http://', 'https://', 1)}"


def _reason(error: Exception) -> str:
    """Return the last clause of a chain of network errors: the part that a person needs."""
    while error.args and isinstance(error.args[-1], Exception):
        error = error.args[-1]
    text = re.sub(r"\[SSL: \w+\] ", "", str(error))  # the name that OpenSSL repeats in words
    text = text.rsplit(": ", 1)[-1].strip("'\" ")
    while text.endswith(")") and text.count(")") > text.count("("):  # of the clauses before it
        text = text[:-1].rstrip("'\" ")
    return text or type(error).__name__


def _authority_advice() -> str:
    """Return what to do about a certificate of an unknown authority."""
    named = os.environ.get("SSL_CERT_FILE")
    if not named:
        return "for a private authority, set SSL_CERT_FILE to the file of its certificate"
    if not Path(named).is_file():
        return f"SSL_CERT_FILE names {named}, which is not a file"
    return f"SSL_CERT_FILE names {named}, which does not have the certificate of its authority"
