"""Handle posts over a Unix socket from agents on this host, and signed posts from agents on other hosts.

| Request | Answer |
|---|---|
| POST /cluster/v2/reports | 200: `Answer`; 409: `Elsewhere`, which names the agent to post to |
| GET /cluster/v2/hello | 200: `Hello`, which names the agent that listens on this port |

The error statuses are 400 for a malformed request, 401 for a request without proof that the agent belongs to
the run, 404 for a different run, 413 for a request that is too large, 421 for a request that is meant for a
different agent, and 426 for a different version. Requests without proof are rejected before their body is
read. ``Host`` and ``Origin`` are not checked, because a web page in a browser cannot send a valid proof.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import ssl
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from http import HTTPStatus
from socketserver import TCPServer
from typing import Any, NamedTuple, Protocol

import msgspec

from stallwatch_exporter.cluster.backing import Merges
from stallwatch_exporter.cluster.host import is_own_peer
from stallwatch_exporter.cluster.signing import (
    BASE,
    HELLO,
    REPLY_HEADER,
    REPORTS,
    UPGRADE,
    Answer,
    Elsewhere,
    Hello,
    Malformed,
    Proof,
    Signer,
    digest_of,
    pack,
    read_proof,
    read_reports,
)
from stallwatch_exporter.cluster.wire import MOST_BYTES, AgentReport, Reply
from stallwatch_exporter.serving.connections import BoundedHandler, BoundedServer, ServerThread
from stallwatch_rules.text.controls import printable

_MOST_AGENTS = 16_384  # maximum number of agents for which the last request number is kept
_MOST_CONNECTIONS = 4096
_REPEATED_SECONDS = 600.0  # seconds until the same problem can be reported again
_MOST_NOTICES = 200


class Notices:
    """Report each problem to the user at most once every ten minutes."""

    def __init__(self, notice: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._notice = notice
        self._clock = clock
        self._mentioned: dict[str, float] = {}
        self._lock = threading.Lock()

    def __call__(self, text: str, about: str = "") -> None:
        """Report a problem, unless a problem with the same `about` was reported recently."""
        text, now = printable(text), self._clock()
        with self._lock:
            self._mentioned = {key: at for key, at in self._mentioned.items() if now - at < _REPEATED_SECONDS}
            key = about or text
            if key in self._mentioned or len(self._mentioned) >= _MOST_NOTICES:
                return
            self._mentioned[key] = now
        with contextlib.suppress(Exception):
            self._notice(text)


def merged(merges: Merges, reports: Sequence[AgentReport]) -> Answer:
    """Merge the reports from one host in order. Return a single answer to all these reports."""
    reply, acknowledged, refused = Reply(), {}, {}
    for report in reports:
        reply = merges.take(report)
        acknowledged.update(reply.acknowledged)
        if reply.refused:
            refused[report.agent] = reply.refused
    return Answer(reply=msgspec.structs.replace(reply, acknowledged=acknowledged), refused=refused)


class Request(NamedTuple):
    """A request whose body has not been read."""

    method: str
    path: str
    authorization: str
    encoding: str
    sender: str  #: address of the sender
    connection: socket.socket
    read: Callable[[], bytes]  #: Returns the body. Raises `Malformed` if its length is invalid.


class Response(NamedTuple):
    """The response to a request."""

    status: HTTPStatus
    body: bytes = b""
    encoding: str = ""
    signature: str = ""


class Gate(Protocol):
    """Object that checks and answers the requests to a server."""

    notices: Notices

    def answer(self, request: Request) -> Response:
        """Answer a request. If the request is invalid, raises `Malformed` with the text of the response."""
        ...


class OtherHosts:
    """Gate for other hosts, which must prove that they belong to the run. The replies are signed."""

    def __init__(
        self,
        secret: bytes,
        agent: str,
        host_id: str,
        merges: Callable[[str], Merges],
        notice: Callable[[str], None],
        *,
        knows: Callable[[str], bool] = lambda _: True,
        elsewhere: Callable[[], Elsewhere | None] = lambda: None,
    ) -> None:
        """Set up the gate.

        `merges` returns the object that merges the reports of the run that has a given key. `knows` returns
        whether a run has that key. `elsewhere` returns the agent that merges reports instead of this agent,
        if such an agent exists.
        """
        self._secret = secret
        self._agent = agent
        self._host_id = host_id
        self._merges = merges
        self._knows = knows
        self._elsewhere = elsewhere
        self.notices = Notices(notice)
        self._lock = threading.Lock()
        self._numbers: OrderedDict[tuple[str, str], int] = OrderedDict()

    def answer(self, request: Request) -> Response:
        """Answer a request from another host."""
        try:
            if not request.path.startswith(f"{BASE}/"):
                if request.path.startswith("/cluster/"):
                    raise Malformed(
                        f"it uses a different version of the protocol; {UPGRADE}", HTTPStatus.UPGRADE_REQUIRED
                    )
                raise Malformed("the path is unknown", HTTPStatus.NOT_FOUND)
            proof = read_proof(request.authorization)
            if proof is None:
                raise Malformed("it does not prove that it belongs to this run", HTTPStatus.UNAUTHORIZED)
            if not self._knows(proof.key):
                # Print no notice, because agents also try the ports of other runs.
                return Response(HTTPStatus.NOT_FOUND)
            signer = Signer(self._secret, proof.key)
            if not signer.is_signed(request.method, request.path, proof):
                raise Malformed("it uses a different secret", HTTPStatus.UNAUTHORIZED)
        except Malformed as problem:
            self.notices(
                f"refused an agent at {request.sender}: {problem}", f"{problem.status} {request.sender}"
            )
            raise
        try:
            status, content = self._signed(request, proof)
        except Malformed as problem:
            self.notices(
                f"refused a post from {proof.agent} at {request.sender}: {problem}",
                f"{problem.status} {request.sender}",
            )
            status, content = problem.status, str(problem)
        body, encoding = content if isinstance(content, tuple) else pack(content)
        return Response(status, body, encoding, signer.reply(proof, status, body))

    def _signed(self, request: Request, proof: Proof) -> tuple[HTTPStatus, object]:
        if (request.method, request.path) == ("GET", HELLO):
            return HTTPStatus.OK, Hello(agent=self._agent, host_id=self._host_id)
        if proof.to != self._agent:
            return HTTPStatus.MISDIRECTED_REQUEST, "it is meant for another agent"
        if (request.method, request.path) == ("POST", REPORTS):
            return self._reports(request, proof)
        return HTTPStatus.NOT_FOUND, "the path is unknown"

    def _reports(self, request: Request, proof: Proof) -> tuple[HTTPStatus, object]:
        with self._lock:
            sender = (proof.key, proof.agent)
            if proof.number <= self._numbers.get(sender, -1):
                raise Malformed("it repeats an earlier request", HTTPStatus.UNAUTHORIZED)
            self._numbers[sender] = proof.number
            self._numbers.move_to_end(sender)
            while len(self._numbers) > _MOST_AGENTS:
                self._numbers.popitem(last=False)
        body = request.read()
        if digest_of(body) != proof.digest:
            raise Malformed("its body does not match its signature")
        reports = read_reports(body, request.encoding, proof.key)
        if (other := self._elsewhere()) is not None:
            return HTTPStatus.CONFLICT, other
        # The address from which an agent connects is the address at which other agents can connect to it.
        here = f"[{request.sender}]" if ":" in request.sender else request.sender
        reports = [
            msgspec.structs.replace(report, address=f"{here}{report.address}")
            if report.address[:1] == ":"
            else report
            for report in reports
        ]
        try:
            return HTTPStatus.OK, merged(self._merges(proof.key), reports)
        except Exception as error:
            self.notices(f"the reports of the run could not be merged ({type(error).__name__}: {error})")
            return HTTPStatus.INTERNAL_SERVER_ERROR, type(error).__name__


class SameHost:
    """Gate for agents of the same account on the same host. The Unix socket is sufficient proof."""

    def __init__(
        self, key: str, take: Callable[[AgentReport], Reply | None], notice: Callable[[str], None]
    ) -> None:
        self._key = key
        self._take = take
        self.notices = Notices(notice)

    def answer(self, request: Request) -> Response:
        """Answer a request from another agent on this host."""
        if not is_own_peer(request.connection):
            raise Malformed("it belongs to another account", HTTPStatus.UNAUTHORIZED)
        try:
            if (request.method, request.path) != ("POST", REPORTS):
                raise Malformed(
                    f"it uses a different version of the protocol; {UPGRADE}", HTTPStatus.UPGRADE_REQUIRED
                )
            reports = read_reports(request.read(), request.encoding, self._key)
        except Malformed as problem:
            self.notices(f"refused a post from an agent on this host: {problem}")
            raise
        answers = [(report.agent, self._take(report)) for report in reports]
        replies = [reply for _, reply in answers if reply is not None]
        if not replies:
            return Response(HTTPStatus.SERVICE_UNAVAILABLE)
        refused = {agent: reply.refused for agent, reply in answers if reply is not None and reply.refused}
        return Response(HTTPStatus.OK, *pack(Answer(reply=replies[-1], refused=refused)))


class ClusterServer(ServerThread):
    """Server that answers requests through a gate until the server is closed."""

    def __init__(
        self,
        gate: Gate,
        address: tuple[str, int] = ("127.0.0.1", 0),
        *,
        context: ssl.SSLContext | None = None,
        bound: socket.socket | None = None,
        most: int = 64,
    ) -> None:
        """Serve at an address, or on a `bound` Unix socket. Raises `OSError` if neither is available."""
        handler = type("Handler", (_Handler,), {"gate": gate})
        server = _Server(address, handler, context, bound=bound)
        server.most = max(8, min(most, _MOST_CONNECTIONS))
        super().__init__(server, "stallwatch-cluster")


class _Server(BoundedServer):
    seconds = 15.0  # longer than a beat, so that the connection of a healthy agent stays open
    whole = 30.0

    def server_bind(self) -> None:
        """Bind to the address, but omit the DNS query that ``HTTPServer.server_bind`` makes."""
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        TCPServer.server_bind(self)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        """Report a client whose certificate does not belong to the run. Ignore all other errors."""
        if isinstance(error := sys.exc_info()[1], ssl.SSLError):
            sender = sender_of(client_address)
            self.RequestHandlerClass.gate.notices(  # type: ignore[attr-defined]
                f"refused an agent at {sender}: it did not present a certificate of the run ({error.reason})",
                f"tls {sender}",
            )


class _Handler(BoundedHandler):
    server: _Server
    gate: Gate
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._handle()

    def do_POST(self) -> None:
        self._handle()

    def _handle(self) -> None:
        # If more than half of the allowed connections are open, close each connection after its request.
        self.close_connection |= 2 * len(self.server.peers) > self.server.most
        self._unread = True
        try:
            if not self.has_one_end():
                raise Malformed("send one Content-Length and no Transfer-Encoding")
            response = self.gate.answer(
                Request(
                    self.command,
                    self.path,
                    self.headers.get("Authorization", ""),
                    self.headers.get("Content-Encoding", ""),
                    sender_of(self.client_address),
                    self.connection,
                    self._read,
                )
            )
        except Malformed as problem:
            response = Response(problem.status, f"{problem}\n".encode())
        except _Gone:
            self.close_connection = True
            return
        self.arrived()
        self.close_connection |= self._unread and self.headers.get("Content-Length", "0") != "0"
        self._write(response)

    def _read(self) -> bytes:
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdecimal()):
            raise Malformed("it has no Content-Length", HTTPStatus.LENGTH_REQUIRED)
        if len(length) > 9 or int(length) > MOST_BYTES:
            raise Malformed(f"it is larger than {MOST_BYTES:,} bytes", HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        body = self.body(int(length))
        if len(body) < int(length) or self._has_left():
            raise _Gone
        self._unread = False
        return body

    def _has_left(self) -> bool:
        """Return whether the sender has already closed the connection."""
        if isinstance(self.connection, ssl.SSLSocket) or not hasattr(socket, "MSG_DONTWAIT"):
            return False
        try:
            return not self.connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False

    def _write(self, response: Response) -> None:
        lines = [
            f"HTTP/1.1 {response.status.value} {response.status.phrase}",
            "Content-Type: application/json",
            f"Content-Length: {len(response.body)}",
            "X-Content-Type-Options: nosniff",
        ]
        if response.encoding:
            lines.append(f"Content-Encoding: {response.encoding}")
        if response.signature:
            lines.append(f"{REPLY_HEADER}: {response.signature}")
        if self.close_connection:
            lines.append("Connection: close")
        # Write in one call because a second small write would wait for an acknowledgment (RFC 896).
        self.wfile.write("\r\n".join([*lines, "", ""]).encode("latin-1") + response.body)


def sender_of(address: Any) -> str:
    """Return the address of a peer as users write it, or an empty string for a Unix socket."""
    sender = str(address[0]) if address else ""
    with contextlib.suppress(ValueError):
        parsed = ipaddress.ip_address(sender.partition("%")[0])
        if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is not None:
            return str(parsed.ipv4_mapped)
    return sender


class _Gone(Exception):
    """Raised if the connection ended before the request was complete."""


def listen(
    gate: Gate, host: str, ports: Sequence[int], context: ssl.SSLContext | None, most: int = 64
) -> ClusterServer:
    """Serve a gate on the first free port at `host` or at all addresses. Raises `OSError` if none is free."""
    problem: OSError | None = None
    for port in ports:
        for address in [host] if host else ["::", "0.0.0.0"]:
            try:
                return ClusterServer(gate, (address, port), context=context, most=most)
            except OSError as error:
                problem = error
    raise problem or OSError("no port is given")


def most_connections(agents: int) -> int:
    """Return the number of connections that a run of this many agents needs."""
    return min(_MOST_CONNECTIONS, 64 + 2 * agents)
