"""Sign and encode posts, and verify the signature of a post before the body is read.

Signatures use HMAC-SHA256 (RFC 2104) with a key derived from the run's secret. The secret itself is never
sent. The signature of a request covers the recipient and an increasing number, so the request cannot be
replayed. A reply is signed together with its request, so only the coordinator can answer the request.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from http import HTTPStatus
from typing import NamedTuple, TypeVar

import msgspec
import zstandard

from stallwatch_exporter.cluster.wire import MOST_BYTES, MOST_REPORTS, VERSION, AgentReport, Post, Reply
from stallwatch_rules.decoding import from_json

BASE = f"/cluster/v{VERSION}"
REPORTS, HELLO = f"{BASE}/reports", f"{BASE}/hello"
REPLY_HEADER = "Stallwatch-Signature"
UPGRADE = f"this agent uses version {VERSION}; install the same version of Stallwatch on all hosts"

_T = TypeVar("_T")
_SCHEME = "Stallwatch-HMAC-SHA256"
_PROOF = re.compile(
    rf"{_SCHEME} key=(?P<key>[\w.-]{{1,64}}), agent=(?P<agent>[\w.:@-]{{1,200}}), "
    r"number=(?P<number>\d{1,20}), to=(?P<to>[\w.:@-]{0,200}), "
    r"body=(?P<digest>[0-9a-f]{64}), signature=(?P<signature>[0-9a-f]{64})",
    re.ASCII,
)
_PACKED_FROM = 32 << 10  # minimum size, in bytes, at which compressing a body is worth the time
_WINDOW = 8 << 20  # maximum number of bytes of memory that zstd uses


class Malformed(Exception):
    """Raised if a post or a reply cannot be accepted. `status` is the HTTP status of the response."""

    def __init__(self, why: str, status: HTTPStatus = HTTPStatus.BAD_REQUEST) -> None:
        super().__init__(why)
        self.status = status


class Proof(NamedTuple):
    """Content of the ``Authorization`` header of a request."""

    key: str  #: key of the run
    agent: str  #: name of the sending agent
    number: int  #: greater than the numbers of all earlier requests
    to: str  #: name of the receiving agent, or empty if the sender does not know it yet
    digest: str = ""  #: digest of the body, so that the proof is verified before the body is read
    signature: str = ""

    @property
    def header(self) -> str:
        """Value of the ``Authorization`` header."""
        return (
            f"{_SCHEME} key={self.key}, agent={self.agent}, number={self.number}, to={self.to}, "
            f"body={self.digest}, signature={self.signature}"
        )


def read_proof(header: str) -> Proof | None:
    """Parse an ``Authorization`` header. Return ``None`` if it contains no proof."""
    if (found := _PROOF.fullmatch(header)) is None:
        return None
    key, agent, number, to, digest, signature = found.groups()
    return Proof(key, agent, int(number), to, digest, signature)


def digest_of(body: bytes) -> str:
    """Return the value of `Proof.digest` for the body of a request."""
    return hashlib.sha256(body).hexdigest()


class Signer:
    """Sign messages with the secret of a run, and verify their signatures."""

    def __init__(self, secret: bytes, key: str) -> None:
        self._derived = hmac.digest(secret, f"stallwatch cluster {VERSION} {key}".encode(), "sha256")

    def sign(self, method: str, path: str, proof: Proof, body: bytes) -> Proof:
        """Return the proof with its digest and signature."""
        proof = proof._replace(digest=digest_of(body))
        return proof._replace(signature=self._of(*_parts(method, path, proof)))

    def is_signed(self, method: str, path: str, proof: Proof) -> bool:
        """Return whether the request was signed with the secret."""
        return hmac.compare_digest(self._of(*_parts(method, path, proof)), proof.signature)

    def reply(self, request: Proof, status: int, body: bytes) -> str:
        """Return the signature of the response to a request."""
        return self._of(b"reply", request.signature.encode(), str(status).encode(), body)

    def is_reply(self, request: Proof, status: int, body: bytes, signature: str) -> bool:
        """Return whether a response belongs to this request and is signed with the run's secret."""
        return hmac.compare_digest(self.reply(request, status, body).encode(), signature.encode())

    def _of(self, *parts: bytes) -> str:
        # Without the lengths, two different lists of parts could result in the same data.
        data = b"".join(len(part).to_bytes(8, "big") + part for part in parts)
        return hmac.digest(self._derived, data, "sha256").hex()


def _parts(method: str, path: str, proof: Proof) -> tuple[bytes, ...]:
    parts = (method, path, proof.key, proof.agent, str(proof.number), proof.to, proof.digest)
    return tuple(part.encode() for part in parts)


class Hello(msgspec.Struct, kw_only=True):
    """Identity of the agent that listens at an address."""

    v: int = VERSION
    agent: str
    host_id: str = ""


class Elsewhere(msgspec.Struct, kw_only=True):
    """Content of a response with status 409, which means that another agent merges the run's reports."""

    host_id: str
    address: str


class Answer(msgspec.Struct, kw_only=True):
    """Content of the response to a post."""

    reply: Reply
    refused: dict[str, str] = {}  #: values of `Reply.refused` that are not empty, by agent

    def of(self, agent: str) -> Reply:
        """Return the reply for one of the agents in the post."""
        return msgspec.structs.replace(self.reply, refused=self.refused.get(agent, ""))


class _Versioned(msgspec.Struct):
    v: int = VERSION


def pack(content: object) -> tuple[bytes, str]:
    """Return two values: the content as JSON, and its ``Content-Encoding`` ("zstd" if large, else "")."""
    body = msgspec.json.encode(content)
    return (zstandard.compress(body, 1), "zstd") if len(body) > _PACKED_FROM else (body, "")


def unpack(body: bytes, encoding: str = "") -> bytes:
    """Decompress a body to at most `MOST_BYTES`. Raises `Malformed` if the body is invalid or too large."""
    try:
        if encoding == "zstd":
            with zstandard.ZstdDecompressor(max_window_size=_WINDOW).stream_reader(body) as stream:
                body = stream.read(MOST_BYTES + 1)
        elif encoding:
            raise Malformed("its compression is not zstd", HTTPStatus.UNSUPPORTED_MEDIA_TYPE)
    except zstandard.ZstdError as error:
        raise Malformed(f"it is not valid {encoding} data") from error
    if len(body) > MOST_BYTES:
        raise Malformed(f"it is larger than {MOST_BYTES:,} bytes", HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
    return body


def read(body: bytes, kind: type[_T]) -> _T:
    """Decode a record of this protocol. Raises `Malformed` if the body cannot be decoded."""
    try:
        return from_json(body, kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        what = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise Malformed(f"it cannot be read: {what}") from error


def read_reports(body: bytes, encoding: str, key: str) -> list[AgentReport]:
    """Read a post from agents of the run `key`. Raises `Malformed` if the post cannot be accepted."""
    body = unpack(body, encoding)
    version = read(body, _Versioned)
    if version.v != VERSION:
        raise Malformed(
            f"it uses version {version.v} of the protocol; {UPGRADE}", HTTPStatus.UPGRADE_REQUIRED
        )
    post = read(body, Post)
    if not 0 < len(post.reports) <= MOST_REPORTS:
        raise Malformed(f"it contains {len(post.reports):,} reports instead of 1 to {MOST_REPORTS}")
    if any(report.key != key for report in post.reports):
        raise Malformed("it contains reports from another run")
    return post.reports
