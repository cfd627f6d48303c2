"""Represent another agent that can merge the run's reports: find its port, and post reports to it."""

from __future__ import annotations

import contextlib
import errno
import http.client
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from stallwatch_exporter.cluster.host import is_own_peer, join_address
from stallwatch_exporter.cluster.secrets import HOW_TO_JOIN, Secret
from stallwatch_exporter.cluster.server import Notices
from stallwatch_exporter.cluster.signing import (
    HELLO,
    REPLY_HEADER,
    REPORTS,
    Answer,
    Elsewhere,
    Hello,
    Malformed,
    Proof,
    Signer,
    pack,
    read,
    unpack,
)
from stallwatch_exporter.cluster.wire import MOST_BYTES, VERSION, AgentReport, Post

ANSWER_SECONDS = 2.0  #: maximum number of seconds to wait for the response of an agent

#: Maximum number of seconds until the next search for an agent that did not respond.
RETRY_SECONDS = 10.0
# First pause between two searches. It is short because agents start within seconds of each other. Each
# further pause is twice as long as the previous pause.
_FIRST_RETRY_SECONDS = 1.0

_PROBLEMS = (OSError, http.client.HTTPException, ValueError, Malformed)


class Signed(NamedTuple):
    """Identity and run that are used to sign this agent's requests."""

    key: str
    agent: str
    secret: Secret
    number: Callable[[], int]  #: returns the next request number

    @property
    def signer(self) -> Signer:
        """Signer that uses the secret of the run."""
        return Signer(self.secret.text, self.key)


class _Refusal(Exception):
    """Raised if an agent responds but rejects the reports. The text is a message for the user."""


class _Unknown(Exception):
    """Raised if a program other than an agent of the run responds."""


class _Unsigned(_Refusal):
    """Raised if a program accepts a request, but its response has no valid signature."""


class Connection(http.client.HTTPConnection):
    """A connection to an address that needs no name resolution, or to a Unix socket."""

    def __init__(self, address: str | tuple[Any, ...], secret: Secret | None = None) -> None:
        super().__init__("stallwatch" if isinstance(address, str) else join_address(*address[:2]))
        self._address = address
        self._tls = secret.client if secret is not None else None
        self._raw: socket.socket | None = None

    def connect(self) -> None:
        """Connect within the timeout."""
        if isinstance(self._address, str):
            family = socket.AF_UNIX
        else:
            family = socket.AF_INET6 if len(self._address) == 4 else socket.AF_INET
        raw = self._raw = socket.socket(family, socket.SOCK_STREAM)
        try:
            raw.settimeout(self.timeout)
            raw.connect(self._address)
            if family != socket.AF_UNIX:
                raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            elif not is_own_peer(raw):  # any account can bind an abstract name
                raise PermissionError(errno.EPERM, "it belongs to another account")
            self.sock = raw if self._tls is None else self._tls.wrap_socket(raw)
        except BaseException:
            raw.close()
            raise

    def end(self) -> None:
        """Shut down the connection to wake up a thread that is waiting on it."""
        if self._raw is not None:
            with contextlib.suppress(OSError):
                socket.socket.shutdown(self.sock or self._raw, socket.SHUT_RDWR)

    @contextlib.contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        """If a ``with`` block takes more than `seconds` seconds in total, raise `TimeoutError`.

        The timeout of a socket is not enough, because it applies only to the wait for the next byte. Any
        error closes the connection.
        """
        self.timeout = seconds
        if self.sock is not None:
            self.sock.settimeout(seconds)
        is_over = threading.Event()

        def end() -> None:
            is_over.set()
            self.end()

        timer = threading.Timer(seconds, end)
        timer.daemon = True
        timer.start()
        try:
            yield
        except BaseException as error:
            self.close()
            if is_over.is_set():
                raise TimeoutError("timed out") from error
            raise
        finally:
            timer.cancel()

    def exchange(
        self, method: str, path: str, body: bytes = b"", encoding: str = "", header: str = ""
    ) -> tuple[int, bytes, str, str]:
        """Send a request and return the response's status, body, ``Content-Encoding``, and signature."""
        headers = {"Content-Type": "application/json"} if body else {}
        if encoding:
            headers["Content-Encoding"] = encoding
        if header:
            headers["Authorization"] = header
        self.request(method, path, body or None, headers)
        response = self.getresponse()
        content = response.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            self.close()
            raise Malformed("the response is too large")
        if response.will_close:
            self.close()
        return (
            response.status,
            content,
            response.headers.get("Content-Encoding", ""),
            response.headers.get(REPLY_HEADER, ""),
        )


class Peer:
    """Another agent, which listens on one of several ports of an address. A thread searches for the port."""

    def __init__(
        self,
        host: str,
        ports: Sequence[int],
        notices: Notices,
        clock: Callable[[], float],
        searches: threading.Semaphore,
    ) -> None:
        """Set up the agent's addresses. `searches` limits the number of concurrent searches for agents."""
        self.host = host
        self.ports = tuple(ports)
        self.hello: Hello | None = None  #: identity of the agent, or ``None`` if it has not been found
        self._notices = notices
        self._clock = clock
        self._searches = searches
        self._where: tuple[Any, ...] | None = None
        self._connection: Connection | None = None
        self._retry_at = float("-inf")
        self._pause = 0.0
        self._lost = False  # true if a search or a post got no response
        self._changed = threading.Condition()
        self._search: threading.Thread | None = None
        self._closed = False

    @property
    def name(self) -> str:
        """Address of the agent, for messages to users."""
        return join_address(self.host, self._where[1] if self._where is not None else self.ports[0])

    @property
    def is_new(self) -> bool:
        """Return whether the first search for the agent has not ended yet."""
        return self.hello is None and not self._lost

    def look(self, signed: Signed) -> None:
        """Search for the agent in a thread. If the agent is known or recently did not respond, do nothing."""
        with self._changed:
            if self._closed or self.hello is not None or self._search is not None:
                return
            if self._clock() < self._retry_at or not self._searches.acquire(blocking=False):
                return
            self._search = threading.Thread(
                target=self._find, args=(signed,), name="stallwatch-cluster-peer", daemon=True
            )
            self._search.start()

    def wait(self, seconds: float) -> bool:
        """Wait until the current search has ended. Return whether the agent responds."""
        with self._changed:
            self._changed.wait_for(lambda: self._search is None, seconds)
            return self.hello is not None

    def lose(self) -> None:
        """Record that the agent does not respond. A new search for it can start after a pause."""
        with self._changed:
            self.hello = None
            self._miss()
        self.close_connection()

    def _miss(self) -> None:
        self._lost = True
        self._pause = min(RETRY_SECONDS, max(_FIRST_RETRY_SECONDS, 2 * self._pause))
        self._retry_at = self._clock() + self._pause

    def close_connection(self) -> None:
        """Close the persistent connection to the agent."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def close(self) -> None:
        """Cancel requests in progress."""
        with self._changed:
            self._closed = True
        if self._connection is not None:
            self._connection.end()

    def is_there(self, signed: Signed, seconds: float) -> bool:
        """Return whether the agent still responds with the same identity."""
        where = self._where
        hello = self._greet_again(where, signed, seconds) if where is not None else None
        return hello is not None and hello == self.hello

    def post(
        self, reports: Sequence[AgentReport], signed: Signed, seconds: float
    ) -> Answer | Elsewhere | None:
        """Post the reports. Return the answer, or ``None`` if the agent does not respond or rejects them."""
        body, encoding = pack(Post(reports=list(reports)))
        end = time.monotonic() + seconds
        for _ in range(3):
            hello, where, kept = self.hello, self._where, self._connection
            if hello is None or where is None:
                return None
            connection = self._connection = kept or Connection(where, signed.secret)
            try:
                with connection.within(max(0.05, end - time.monotonic())):
                    status, content = _sent(
                        connection, signed, "POST", REPORTS, hello.agent, body=body, encoding=encoding
                    )
                if connection.sock is None:
                    self._connection = None
                if status == 421:  # another agent now listens at this address
                    self.hello = self._greet(where, signed, max(0.05, end - time.monotonic()))
                    continue
                if status == 200:
                    return read(content, Answer)
                if status == 409:
                    return read(content, Elsewhere)
                raise _Refusal(_reason(status))
            except _Refusal as problem:
                self._refused(self.name, problem)
                break
            except _Unknown:
                break
            except _PROBLEMS:
                self.close_connection()
                if kept is None:
                    break
                # The agent might only have closed the idle connection, so check whether it still responds.
                self.hello = self._greet_again(where, signed, end - time.monotonic())
                if self.hello is None:
                    break
        self.lose()
        return None

    def _greet_again(self, where: tuple[Any, ...], signed: Signed, seconds: float) -> Hello | None:
        """Request the identity of a known agent. Return ``None`` if the agent does not respond in time."""
        if seconds <= 0:
            return None
        try:
            return self._greet(where, signed, seconds)
        except (*_PROBLEMS, _Refusal, _Unknown):
            return None

    def _find(self, signed: Signed) -> None:
        """Search the ports of all addresses for an agent of the run."""
        found: tuple[Hello, tuple[Any, ...]] | None = None
        try:
            found = self._search_ports(signed, time.monotonic() + ANSWER_SECONDS)
        except _Refusal as problem:
            self._refused(self.name, problem)
        except _PROBLEMS:
            pass
        finally:
            self._searches.release()
            with self._changed:
                if found is not None:
                    self.hello, self._where = found
                    self._lost, self._pause = False, 0.0
                else:
                    self._miss()
                self._search = None
                self._changed.notify_all()

    def _refused(self, name: str, problem: _Refusal) -> None:
        self._notices(f"{name} does not accept the reports of this host: {problem}")

    def _search_ports(self, signed: Signed, end: float) -> tuple[Hello, tuple[Any, ...]] | None:
        resolved = socket.getaddrinfo(self.host, self.ports[0], type=socket.SOCK_STREAM)
        unsigned: tuple[int, _Unsigned] | None = None
        for *_, first in resolved:
            for port in self.ports:
                where = (first[0], port, *first[2:])
                if (left := end - time.monotonic()) <= 0:
                    break
                try:
                    return self._greet(where, signed, min(left, ANSWER_SECONDS / 2)), where
                except ssl.SSLError as error:
                    raise _Refusal(
                        f"the certificate of one of the two hosts does not belong to the run ({error.reason})"
                    ) from error
                except _Unsigned as problem:
                    # If a different program uses this port, the agent listens on one of the next ports.
                    unsigned = unsigned or (port, problem)
                except (*_PROBLEMS, _Unknown):
                    continue  # no program responds, or the program is not an agent of this run
        if unsigned is not None:
            self._refused(join_address(self.host, unsigned[0]), unsigned[1])
        return None

    def _greet(self, where: tuple[Any, ...], signed: Signed, seconds: float) -> Hello:
        connection = Connection(where, signed.secret)
        try:
            with connection.within(seconds):
                status, content = _sent(connection, signed, "GET", HELLO, "")
        finally:
            connection.close()
        if status != 200:
            raise _Refusal(_reason(status))
        hello = read(content, Hello)
        if hello.v != VERSION:
            raise _Refusal(_reason(426))
        return hello


def _sent(
    connection: Connection,
    signed: Signed,
    method: str,
    path: str,
    to: str,
    *,
    body: bytes = b"",
    encoding: str = "",
) -> tuple[int, bytes]:
    """Send a signed request and return the status and the body of the response.

    Raises `_Refusal` if an agent rejects the request, or accepts it in a response without a valid
    signature. Raises `_Unknown` for every other response without a valid signature.
    """
    signer = signed.signer
    proof = signer.sign(method, path, Proof(signed.key, signed.agent, signed.number(), to), body)
    status, content, packed, signature = connection.exchange(method, path, body, encoding, proof.header)
    if signer.is_reply(proof, status, content, signature):
        return status, unpack(content, packed)
    if status in (401, 426):
        raise _Refusal(_reason(status))
    if status in (200, 409):
        raise _Unsigned(
            "its response is not signed with the secret of the run, "
            "so a different program might use this port"
        )
    raise _Unknown


def _reason(status: int) -> str:
    """Return the reason for a rejection. The text of the response itself is untrusted and is not shown."""
    return {
        400: "it cannot read the reports",
        401: f"it uses a different secret; {HOW_TO_JOIN}",
        404: "it does not merge the reports of this run",
        413: "the reports are too large",
        500: "it failed to merge the reports; see the messages of that agent",
        426: "it uses a different version of the protocol; install the same Stallwatch version on all hosts",
    }.get(status, f"HTTP status {status}")
