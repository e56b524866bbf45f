"""Links over real sockets on 127.0.0.1: a peer without proof reaches no protocol above them."""

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import uvloop

from app.node.links import links as links_module
from app.node.links.credentials import LinkSecurity, Mode, load_link_security
from app.node.links.handshake import MAGIC, Identity, Purpose
from app.node.links.handshakes_in_progress import HandshakesInProgress
from app.node.links.links import LinkedProtocol, Links
from app.settings.model import SecuritySettings
from tests.support.certificates import make_authority, make_certificate

SECRET, OTHER = b"sixteen bytes at least", b"another secret, also long"
LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]


def with_secret(*secrets: bytes, mode: Mode = Mode.SECRET) -> LinkSecurity:
    return LinkSecurity(mode=mode, secrets=secrets)


class Echo(LinkedProtocol):
    """Answers what arrives, in upper case."""

    def __init__(self, made: list["Echo"]) -> None:
        self.received = b""
        self.lost = asyncio.Event()
        self.heard = asyncio.Event()
        self.transport: asyncio.Transport | None = None
        self.answers = True
        made.append(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += data
        self.heard.set()
        if self.answers and self.transport is not None:
            self.transport.writelines([data.upper(), b"!"])

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set()


class Port:
    """A listener of node n2, and n1 that dials it."""

    def __init__(self, accepts: LinkSecurity, dials: LinkSecurity, dials_as: str = "n1") -> None:
        self.accepting = Links(Identity("c", "n2", Purpose.HA), accepts)
        self.dialling = Links(Identity("c", dials_as, Purpose.HA), dials)
        self.made: list[Echo] = []
        self.ours: list[Echo] = []
        self.port = 0

    async def __aenter__(self) -> "Port":
        loop = asyncio.get_running_loop()
        self.server = await loop.create_server(
            lambda: self.accepting.accept(lambda: Echo(self.made)), "127.0.0.1", 0
        )
        self.port = self.server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self.accepting.stop()
        for echo in (*self.made, *self.ours):
            if echo.transport is not None:
                echo.transport.abort()
        self.server.close()
        await asyncio.sleep(0)

    def _own(self) -> Echo:
        echo = Echo(self.ours)
        echo.answers = False
        return echo

    async def dial(self, target: str = "n2") -> Echo:
        async with asyncio.timeout(5):
            await self.dialling.connect(self._own, "127.0.0.1", self.port, target)
        return self.ours[-1]

    async def speaks(self) -> None:
        """Dial, and send more than a frame's worth both ways."""
        echo = await self.dial()
        assert echo.transport is not None
        echo.transport.write(b"hello")
        await echo.heard.wait()
        large = bytes(range(97, 123)) * 40_000
        echo.transport.writelines([large[:10], large[10:]])
        while len(echo.received) < 5 + len(large):
            echo.heard.clear()
            await echo.heard.wait()
        assert echo.received.replace(b"!", b"") == b"HELLO" + large.upper()


def run(test: Callable[[], Awaitable[None]], make_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            await test()

    with asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(bounded())


async def raw(port: int, data: bytes) -> bytes:
    """Return everything that the port answers to some bytes, until it closes or 0.3 s pass."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answer = b""
    try:
        writer.write(data)
        async with asyncio.timeout(0.3):
            while chunk := await reader.read(65_536):
                answer += chunk
    except (TimeoutError, ConnectionError):
        pass
    finally:
        writer.close()
    return answer


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., LinkSecurity]:
    folder = tmp_path_factory.mktemp("certificates")
    authorities = {name: make_authority(folder, name) for name in ("ca", "foreign")}

    def security(name: str, alternatives: str, authority: str = "ca", trusts: str = "ca") -> LinkSecurity:
        certificate, key = make_certificate(authorities[authority], f"{name}-{authority}", alternatives)
        settings = SecuritySettings(
            peer_tls_certificate=certificate, peer_tls_key=key, peer_tls_ca=authorities[trusts]
        )
        return load_link_security(settings, dict.fromkeys(("n1", "n2"), "127.0.0.1").get)

    return security


@pytest.mark.parametrize("make_loop", LOOPS)
def test_nodes_with_the_secret_reach_each_other(make_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def test() -> None:
        async with Port(with_secret(SECRET), with_secret(SECRET)) as port:
            await port.speaks()
            assert (port.made[0].proven_id, port.ours[0].proven_id) == ("n1", "n2")
            assert len(port.accepting.handshakes) == 0

    run(test, make_loop)


@pytest.mark.parametrize(
    ("accepts", "dials"),
    [((SECRET,), (SECRET, OTHER)), ((OTHER, SECRET), (SECRET, OTHER)), ((OTHER, SECRET), (OTHER,))],
)
def test_a_secret_is_rotated_without_a_moment_in_which_nodes_do_not_reach_each_other(
    accepts: tuple[bytes, ...], dials: tuple[bytes, ...]
) -> None:
    async def test() -> None:
        async with Port(with_secret(*accepts), with_secret(*dials)) as port:
            await port.speaks()

    run(test, asyncio.new_event_loop)


OPTIONAL = with_secret(SECRET, mode=Mode.OPTIONAL_SECRET)


@pytest.mark.parametrize(
    ("accepts", "dials", "tries"),
    [
        (LinkSecurity(), LinkSecurity(), 1),
        (OPTIONAL, LinkSecurity(), 1),
        (OPTIONAL, OPTIONAL, 1),
        (OPTIONAL, with_secret(SECRET), 1),
        (with_secret(SECRET), OPTIONAL, 1),
    ],
)
def test_a_secret_is_introduced_in_a_running_cluster(
    accepts: LinkSecurity, dials: LinkSecurity, tries: int
) -> None:
    async def test() -> None:
        async with Port(accepts, dials) as port:
            await port.speaks()

    run(test, asyncio.new_event_loop)


class Strict(Echo):
    """A port of an earlier version: bytes that are not its own end the connection."""

    def data_received(self, data: bytes) -> None:
        if data.startswith(MAGIC):
            assert self.transport is not None
            self.transport.close()
        else:
            super().data_received(data)


def test_a_node_that_introduces_a_secret_reaches_a_node_without_the_handshake() -> None:
    async def test() -> None:
        async with Port(LinkSecurity(), OPTIONAL) as port:
            port.server.close()
            made: list[Echo] = []
            server = await asyncio.get_running_loop().create_server(lambda: Strict(made), "127.0.0.1", 0)
            port.port = server.sockets[0].getsockname()[1]
            with pytest.raises(ConnectionError):
                await port.dial()
            await port.speaks()  # the next attempt is plain
            with pytest.raises(ConnectionError):
                await port.dial()  # and the one after it proves the secret again
            server.close()
            for echo in made:
                if echo.transport is not None:
                    echo.transport.abort()

    run(test, asyncio.new_event_loop)


@pytest.mark.parametrize("patience_s", [0.05, 60.0])
def test_a_call_that_is_given_up_soon_does_not_make_the_next_one_plain(
    patience_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other side may have the handshake, and be busy."""
    monkeypatch.setattr(links_module, "UNDERSTOOD_S", patience_s)

    async def test() -> None:
        firsts: list[bytes] = []

        async def stay_silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.closing(writer), contextlib.suppress(ConnectionError):
                firsts.append(await reader.read(len(MAGIC)))
                await reader.read()

        async with Port(LinkSecurity(), OPTIONAL) as port:
            server = await asyncio.start_server(stay_silent, "127.0.0.1", 0)
            port.port = server.sockets[0].getsockname()[1]
            for _ in range(2):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.3):
                        await port.dial()
            is_proving = patience_s > 1
            assert (len(port.ours), firsts) == (0 if is_proving else 1, [MAGIC] * (1 + is_proving))
            server.close()

    run(test, asyncio.new_event_loop)


@pytest.mark.parametrize(
    ("accepts", "dials", "refusal"),
    [
        (with_secret(SECRET), with_secret(OTHER), "proof"),
        (with_secret(SECRET), with_secret(OTHER, mode=Mode.OPTIONAL_SECRET), "proof"),
        (OPTIONAL, with_secret(OTHER), "proof"),
    ],
)
def test_another_secret_reaches_nothing(accepts: LinkSecurity, dials: LinkSecurity, refusal: str) -> None:
    async def test() -> None:
        async with Port(accepts, dials) as port:
            for _ in range(2):
                with pytest.raises(ConnectionError):
                    await port.dial()
            assert (port.made, port.ours) == ([], [])
            assert port.accepting.refused[refusal] == 2

    run(test, asyncio.new_event_loop)


def test_a_node_that_is_not_the_one_called_reaches_nothing() -> None:
    async def test() -> None:
        async with Port(with_secret(SECRET), with_secret(SECRET)) as port:
            with pytest.raises(ConnectionError):
                await port.dial(target="n3")
            assert port.made == []

    run(test, asyncio.new_event_loop)


@pytest.mark.parametrize("make_loop", LOOPS)
@pytest.mark.parametrize(
    "data",
    [b"\x07\x00\x00\x00garbage", bytes(8), b"CLHA" + bytes(12), MAGIC + b"\xff\xff", MAGIC + b"\x00\x02{}"],
)
def test_bytes_without_a_proof_get_no_byte_and_reach_nothing(
    data: bytes, make_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    async def test() -> None:
        async with Port(with_secret(SECRET), with_secret(SECRET)) as port:
            assert await raw(port.port, data) == b""
            assert port.made == []
            assert len(port.accepting.handshakes) == 0
            await port.speaks()

    run(test, make_loop)


def test_a_changed_frame_ends_the_connection() -> None:
    async def test() -> None:
        async with Port(with_secret(SECRET), with_secret(SECRET)) as port:
            echo = await port.dial()
            sealed = echo.transport
            assert isinstance(sealed, links_module.SealedTransport)
            frame = bytearray(b"".join(sealed._seal([b"pay 100"])))
            frame[8] ^= 1
            sealed._transport.write(bytes(frame))
            await echo.lost.wait()
            assert port.made[0].received == b""
            assert port.accepting.refused["forged"] == 1

    run(test, asyncio.new_event_loop)


@pytest.mark.parametrize("sent", [b"", MAGIC[:2], MAGIC, MAGIC + b"\x01\x00{"])
def test_a_connection_that_proves_nothing_in_time_is_closed(
    sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        async with Port(with_secret(SECRET), with_secret(SECRET)) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port.port)
            writer.write(sent)
            with contextlib.suppress(ConnectionResetError):  # an orderly end will do
                assert await reader.read() == b""
            writer.close()
            assert (len(port.accepting.handshakes), port.accepting.refused["late"]) == (0, 1)

    monkeypatch.setattr(links_module, "HANDSHAKE_TIMEOUT_S", 0.05)
    run(test, asyncio.new_event_loop)


def test_a_flood_of_silent_connections_keeps_no_node_out() -> None:
    async def test() -> None:
        async with Port(with_secret(SECRET), with_secret(SECRET)) as port:
            port.accepting.handshakes = HandshakesInProgress(8)
            flood = [socket.create_connection(("127.0.0.1", port.port)) for _ in range(40)]
            await port.speaks()
            assert len(port.accepting.handshakes) <= 8
            assert port.accepting.refused["full"] >= 32
            for end in flood:
                end.close()

    run(test, asyncio.new_event_loop)


# --- TLS ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make_loop", LOOPS)
def test_nodes_with_certificates_reach_each_other(
    certificates: Callable[..., LinkSecurity], make_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    async def test() -> None:
        async with Port(certificates("n2", "DNS:n2"), certificates("host", "IP:127.0.0.1")) as port:
            await port.speaks()
            assert port.made[0].proven_id == "n1"
            assert len(port.accepting.handshakes) == 0

    run(test, make_loop)


@pytest.mark.parametrize("make_loop", LOOPS)
@pytest.mark.parametrize(
    ("dials_as", "alternatives", "authority", "trusts"),
    [
        pytest.param("n1", "DNS:n1", "foreign", "ca", id="another authority"),
        pytest.param("n1", "DNS:n1", "ca", "foreign", id="it trusts another authority"),
        pytest.param("n3", "DNS:n1,IP:127.0.0.1", "ca", "ca", id="the certificate of another node"),
        pytest.param("n1", "DNS:n2,IP:127.0.0.1", "ca", "ca", id="of another node on the same host"),
    ],
)
def test_a_certificate_that_does_not_fit_reaches_nothing(
    certificates: Callable[..., LinkSecurity],
    make_loop: Callable[[], asyncio.AbstractEventLoop],
    dials_as: str,
    alternatives: str,
    authority: str,
    trusts: str,
) -> None:
    async def test() -> None:
        dials = certificates("d", alternatives, authority, trusts)
        async with Port(certificates("n2", "DNS:n2"), dials, dials_as) as port:
            with pytest.raises(OSError):  # noqa: PT011  # TLS and the handshake end it in their own ways
                await port.dial()
            assert port.made == []

    run(test, make_loop)


def test_a_listener_whose_certificate_names_another_node_is_refused(
    certificates: Callable[..., LinkSecurity],
) -> None:
    async def test() -> None:
        async with Port(certificates("n9", "DNS:n9"), certificates("n1", "DNS:n1")) as port:
            with pytest.raises(ConnectionError, match="certificate of n2 names n9"):
                await port.dial()
            assert port.ours == []

    run(test, asyncio.new_event_loop)


@pytest.mark.parametrize("make_loop", LOOPS)
def test_bytes_that_are_not_tls_reach_nothing(
    certificates: Callable[..., LinkSecurity], make_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    async def test() -> None:
        async with Port(certificates("n2", "DNS:n2"), certificates("n1", "DNS:n1")) as port:
            hello = b"".join([MAGIC, b"\x00\x02{}"])
            assert b"nonce" not in await raw(port.port, hello)
            assert await raw(port.port, bytes(64)) is not None
            assert (port.made, len(port.accepting.handshakes)) == ([], 0)
            await port.speaks()

    run(test, make_loop)


# --- files ----------------------------------------------------------------------------------------------


@pytest.fixture
def secret_file(tmp_path: Path) -> Path:
    path = tmp_path / "cluster.secret"
    path.touch(mode=0o600)
    return path


@pytest.mark.parametrize(
    ("text", "secrets"),
    [
        ("0123456789abcdef", (b"0123456789abcdef",)),
        ("# old, new\n0123456789abcdef\n\n fedcba9876543210 \n", (b"0123456789abcdef", b"fedcba9876543210")),
    ],
)
def test_secrets_are_lines(secret_file: Path, text: str, secrets: tuple[bytes, ...]) -> None:
    secret_file.write_text(text)
    assert load_link_security(SecuritySettings(cluster_secret_file=secret_file)).secrets == secrets


@pytest.mark.parametrize(
    ("text", "mode", "complaint"),
    [
        ("", 0o600, "must contain 1 or 2 secrets"),
        ("too short", 0o600, "secret 1 has 9"),
        ("0123456789abcdef\n" * 3, 0o600, "got 3"),
        ("0123456789abcdef", 0o644, r"permissions 0644, .* use `chmod 600 .*`"),
        ("0123456789abcdef", 0o620, "permissions 0620"),
    ],
)
def test_a_secret_that_cannot_be_used_is_refused(
    secret_file: Path, text: str, mode: int, complaint: str
) -> None:
    secret_file.write_text(text)
    secret_file.chmod(mode)
    with pytest.raises(Exception, match=complaint):
        load_link_security(SecuritySettings(cluster_secret_file=secret_file))


@pytest.mark.parametrize("make_loop", LOOPS)
@pytest.mark.parametrize("is_soon", [False, True])
def test_a_call_that_is_cancelled_when_it_is_proved_leaves_no_connection(
    make_loop: Callable[[], asyncio.AbstractEventLoop], is_soon: bool
) -> None:
    """In the call of `make`, or after it in the same turn of the loop: the caller does not know of it."""

    async def test() -> None:
        loop, errors = asyncio.get_running_loop(), list[object]()
        loop.set_exception_handler(lambda _loop, context: errors.append(context))
        async with Port(with_secret(SECRET), with_secret(SECRET)) as port:

            def make() -> Echo:
                if is_soon:
                    loop.call_soon(calling.cancel)
                else:
                    calling.cancel()
                return port._own()

            calling = asyncio.create_task(port.dialling.connect(make, "127.0.0.1", port.port, "n2"))
            with pytest.raises(asyncio.CancelledError):
                await calling
            for echo in (*port.ours, *port.made):
                if echo.transport is not None:
                    await echo.lost.wait()
        assert errors == []

    run(test, make_loop)
