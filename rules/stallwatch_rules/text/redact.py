"""Remove secrets from text before the text is stored, shown, sent, or used for learning.

``secret_shapes.json`` lists forms of secrets: tokens of known services, credentials in addresses, values
whose names suggest secrets, and the user's name in home paths. A site can add patterns. The search takes
linear time (google-re2). A quick search first skips text without secrets, which is nearly all text. Line ends
are not changed, so many lines can be redacted together.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import re2

from stallwatch_rules.text.lazy import lazy

MASK = b"***"
#: Environment variable with the patterns of a site, one on each line. All processes that are started later
#: inherit it.
SITE_PATTERNS = "STALLWATCH_REDACT_PATTERNS"

_HERE = Path(__file__)
_SCHEMES = msgspec.json.decode(
    _HERE.with_name("chat_schemes.json").read_bytes(), type=dict[str, frozenset[str]]
)
# Schemes of chat addresses in Apprise 2.3.0 (apprise/plugins/*.py, protocol and secure_protocol), and two
# schemes from earlier versions. ``add_schemes`` adds the schemes of later versions when Apprise is loaded.
SECRET_SCHEMES = _SCHEMES["secret"]  #: schemes after which all text is masked; the host can be a token
#: Schemes for users' own servers. The address is kept, but the path can be a token.
HOST_SCHEMES = _SCHEMES["host"]
#: Schemes that have no secret except a password, or that are not only for chats.
OPEN_SCHEMES = _SCHEMES["open"]
_chat_schemes = SECRET_SCHEMES


SITE = "site"  #: value of ``source`` for the patterns of a configuration
_MOST_GROUPS = 100  # maximum number of groups in a pattern of a site, because the search time is quadratic


class Shape(msgspec.Struct, frozen=True):
    """The form of one kind of secret, and the mask that replaces the secret."""

    id: str
    hint: str  #: a pattern for a fast search; it matches wherever the shape can match
    pattern: str  #: regular expression; group 1 is kept, and checks inspect the other groups
    source: str = SITE
    check: str = ""  #: name of the check in ``_CHECKS`` that confirms the secret
    mask: str = "***"


class _File(msgspec.Struct):
    sources: dict[str, dict[str, str]]
    fragments: dict[str, str]
    words: dict[str, list[str]]
    shapes: list[Shape]

    def lowercase(self, name: str) -> frozenset[bytes]:
        return frozenset(word.encode() for word in self.words[name])


_FILE = msgspec.json.decode(_HERE.with_name("secret_shapes.json").read_bytes(), type=_File)


def redact(text: str, *, homes: bool = True) -> str:
    """Return the text with its secrets masked. If the result is redacted again, it does not change.

    ``homes=False`` does not mask the user's name in home paths. Use this value for a path that the reader
    must recognize.
    """
    data = text.encode(
        "utf-8", "surrogatepass"
    )  # lone surrogates (bytes of a log that cannot be decoded) are returned unchanged
    engine = _engine()
    if engine.hints.search(data) is None:
        return text
    return engine.masked(data, homes).decode("utf-8", "surrogatepass")


def secrets_in(text: str) -> Iterator[tuple[str, int]]:
    """Yield the kinds of secrets that the text contains, with their counts. Home paths are not included."""
    found: dict[str, int] = {}
    _engine().masked(text.encode("utf-8", "surrogatepass"), False, found)
    yield from found.items()


class LineMasker:
    """A masker for the lines of one stream. It also recognizes private keys whose lines arrive separately."""

    def __init__(self) -> None:
        self.after_key = False  #: True if the last line belonged to a private key

    def __call__(self, line: str) -> str:
        """Return the next line with its secrets masked."""
        clean = redact(line)
        if self.after_key:
            clean = mask_key_end(clean)
        self.after_key = is_key_line(line)
        return clean


def redact_part(part: str, clean: str) -> str:
    """Mask the secrets in a part of a line as if the whole line were masked. No part of a secret remains."""
    if part in clean:
        return part
    masked = redact(part)
    return masked if masked in clean else MASK.decode()


def mask_key_end(line: str) -> str:
    """Mask the end of a private key in a line that follows another line of the key."""
    return _KEY_END.sub(lambda found: f"{found[1]}***", line)


def is_key_line(line: str) -> bool:
    """Return whether a line is a full line of a private key.

    If so, the next line can be the shorter last line of the key.
    """
    found = _KEY_LINE.search(line) if len(line) >= _SHORTEST_KEY_LINE else None
    return found is not None and _is_key_material(found[1].encode())


_SHORTEST_KEY_LINE = 60
_KEY_LINE = lazy(r"(?:^|[ \t:|>\"'])([A-Za-z0-9+/]{60,76}={0,2})[ \t\r\n]*$")
_KEY_END = lazy(
    r"(^|[ \t:|>])(?=.*[A-Z0-9+/=])(?:[A-Za-z0-9+/]{4}){0,18}[A-Za-z0-9+/]{2,4}={0,2}(?=[ \t\r\n]*$)"
)


def add_schemes(names: Iterable[str]) -> None:
    """Mask the addresses of all chat services that Apprise supports. Load Apprise before this call."""
    global _chat_schemes
    new = {name.lower() for name in names if name.isascii() and name.isalnum()}
    new -= _chat_schemes | HOST_SCHEMES | OPEN_SCHEMES | {"http", "https", "file"}
    if new:
        _chat_schemes |= new
        _engine.cache_clear()


def use_site_patterns(patterns: Sequence[str]) -> None:
    """Also mask the matches of these patterns, in this process and in processes that it starts later."""
    before = os.environ.get(SITE_PATTERNS, "")
    if (given := "\n".join(patterns)) != before:
        os.environ[SITE_PATTERNS] = given
        _engine.cache_clear()


def pattern_problem(pattern: str) -> str:
    """Return the reason why a site's pattern cannot be used, or an empty string if it can be used."""
    try:
        compiled = re2.compile(_encoded(pattern), _options())
    except re2.error as error:
        reason = error.args[0] if error.args else b""
        reason = reason.decode("utf-8", "replace") if isinstance(reason, bytes) else reason
        return f"{reason} (patterns use RE2 syntax)"
    if compiled.groups > _MOST_GROUPS:
        return f"it has more than {_MOST_GROUPS} groups"
    return "it matches an empty string" if compiled.search(b"") is not None else ""


# ---- the masking itself


def _encoded(pattern: str) -> bytes:
    # A site's pattern can contain text that is not valid UTF-8.
    return pattern.encode("utf-8", "surrogatepass")


class _Engine:
    """The shapes of all secrets. Each shape is compiled on first use."""

    def __init__(self, shapes: Sequence[Shape], key_hint: str) -> None:
        self.shapes = shapes
        hints = _options(groups=False)
        self.hints = re2.compile(_encoded("|".join(dict.fromkeys(shape.hint for shape in shapes))), hints)
        self.keys = re2.compile(key_hint.encode(), hints)
        self._which = re2.Set.SearchSet(hints)
        for shape in shapes:
            self._which.Add(_encoded(shape.hint))
        self._which.Compile()
        self._compiled: list[tuple[Any, Callable[[Any], bytes]] | None] = [None] * len(shapes)

    def masked(self, data: bytes, homes: bool, found: dict[str, int] | None = None) -> bytes:
        """Return the masked text. `found` receives the number of secrets of each shape."""
        parts: list[bytes] = []
        done = 0
        while (hit := self.hints.search(data, done)) is not None:
            start = data.rfind(b"\n", done, hit.start()) + 1 or done
            end = data.find(b"\n", hit.end())
            line = start
            while end >= 0 and self.keys.search(data[line:end]) is not None:
                # The short last line of a key follows a long line.
                line, end = end + 1, data.find(b"\n", end + 1)
            end = len(data) if end < 0 else end
            parts += data[done:start], self._masked_line(data[start:end], homes, found)
            done = end
        return b"".join((*parts, data[done:]))

    def _masked_line(self, line: bytes, homes: bool, found: dict[str, int] | None) -> bytes:
        # The set returns no match if it runs out of memory. In this case, all shapes are tried.
        for index in sorted(self._which.Match(line) or range(len(self.shapes))):
            shape = self.shapes[index]
            if shape.mask != "***" and not homes:
                continue
            expression, replace = self._compiled[index] or self._compile(index)
            before, line = line, expression.sub(replace, line)
            if found is not None and line != before:
                masks = line.count(MASK) - before.count(MASK)
                found[shape.id] = found.get(shape.id, 0) + max(1, masks)
        return line

    def _compile(self, index: int) -> tuple[Any, Callable[[Any], bytes]]:
        shape = self.shapes[index]
        lines = r"\n" in shape.pattern and shape.source != SITE  # the shape of the last line of a key
        expression = re2.compile(_encoded(shape.pattern), _options(lines=lines))
        made = self._compiled[index] = (expression, _replacement(shape, expression.groupindex))
        return made


@cache
def _engine() -> _Engine:
    fragments = _FILE.fragments | {
        "SECRET_SCHEMES": _either(_chat_schemes),
        "HOST_SCHEMES": _either(HOST_SCHEMES),
    }

    def filled(pattern: str) -> str:
        return _FRAGMENT.sub(lambda found: fragments[found[1]], pattern)

    packaged = [
        msgspec.structs.replace(shape, hint=filled(shape.hint), pattern=filled(shape.pattern))
        for shape in _FILE.shapes
    ]
    site = [
        Shape(f"site-{number}", f"(?:{pattern})", f"()(?:{pattern})")
        for number, pattern in enumerate(os.environ.get(SITE_PATTERNS, "").splitlines(), 1)
        if not pattern_problem(pattern)
    ]
    return _Engine([*site, *packaged], fragments["KEY_LINE_HINT"])


_FRAGMENT = lazy(r"\{\{(\w+)\}\}")


def _either(names: Iterable[str]) -> str:
    return "|".join(sorted(names, key=lambda name: (-len(name), name)))


def _options(*, lines: bool = False, groups: bool = True) -> Any:
    options = re2.Options()
    options.never_nl = not lines  # matches do not span lines, except for patterns that contain a line end
    options.never_capture = not groups
    options.encoding = re2.Options.Encoding.LATIN1  # accept any bytes, not only UTF-8
    options.log_errors = False
    options.max_mem = 64 << 20  # a set of all hints needs more than the default of 8 MiB
    return options


def _replacement(shape: Shape, groups: Mapping[bytes, int]) -> Callable[[Any], bytes]:
    mask, check = shape.mask.encode(), _CHECKS[shape.check] if shape.check else None

    def replace(match: Any) -> bytes:
        whole: bytes = match.group(0)
        if check is not None and not check(match):
            return whole
        if b"secret" not in groups:
            return bytes((match.group(1) or b"") + mask)
        secret: bytes = match.group(b"secret")
        start, end = (at - match.start() for at in match.span(groups[b"secret"]))
        quote = _QUOTE.match(secret)
        opening = quote[0] if quote is not None and shape.check in _NAMED else b""
        closing = opening if len(secret) > len(opening) and secret.endswith(opening) else b""
        return bytes(whole[:start] + opening + mask + closing + whole[end:])

    return replace


_QUOTE = lazy(rb"\\?[\"'`]")
_NAMED = ("named", "random")


# ---- secrets, and text that only looks like a secret


def _is_mixed(match: Any) -> bool:
    """Return whether a match contains uppercase and lowercase letters, unlike hashes and timestamps."""
    value: bytes = match.group(b"secret")
    return value != value.lower() and value != value.upper()


def _is_key(match: Any) -> bool:
    return _is_key_material(match.group(b"secret"))


def _is_key_material(value: bytes) -> bool:
    """Return whether a value can be part of a key. Hexadecimal hashes and single long words cannot."""
    return value != value.lower() and value != value.upper() and any(char in b"0123456789" for char in value)


def _ends_key(match: Any) -> bool:
    """Return whether a match can be a key's end: it follows a line of a key, and its length fits Base64."""
    before = _KEY_LINE.search(match.group(1).partition(b"\n")[0].decode("latin-1"))
    return before is not None and _is_key_material(before[1].encode()) and not len(match.group(b"secret")) % 4


def _is_filled(match: Any) -> bool:
    r"""Return whether the line continues, for example, with more of a key that contains ``\n``."""
    return bool(match.group(b"secret").strip())


def _is_no_revision(match: Any) -> bool:
    """Return whether a match is a W&B key rather than a commit hash, which has the same form."""
    return _REVISION.search(match.group(1)) is None


def _is_no_placeholder(match: Any) -> bool:
    """Return whether a match is not a placeholder: a variable or command in braces or after a dollar sign."""
    return not match.group(b"secret").startswith((b"{", b"$", b"<", b"%"))


def _is_random(match: Any) -> bool:
    return _looks_random(match.group(b"secret").strip(b"\"'`\\"))


def _is_named_secret(match: Any) -> bool:
    value: bytes = match.group(b"secret")
    return _looks_secret(value.strip(b"\"'`\\") if _QUOTE.match(value) else value, match.group(b"name"))


_CHECKS: dict[str, Callable[[Any], bool]] = {
    "mixed": _is_mixed,
    "key-material": _is_key,
    "key-end": _ends_key,
    "filled": _is_filled,
    "no-revision": _is_no_revision,
    "no-placeholder": _is_no_placeholder,
    "random": _is_random,
    "named": _is_named_secret,
}
_REVISION = lazy(rb"(?i)(?:commit|revision|\brev|sha1?|hash|digest|git|artifact|version)[^\n]{0,24}$")

# Words before "token" or "key" that show who owns the token or key. Models also have tokens (such as
# eos_token, cls_token, or image_token), and tables have keys.
_OWNERS = _FILE.lowercase("owners_of_secrets")
_NO_OWNERS = _FILE.lowercase("owners_of_other_tokens_and_keys")
_WORDS = lazy(rb"[_.-]+|(?<=[a-z0-9])(?=[A-Z])")


def _owner(name: bytes) -> bytes | None:
    """Return the owner of a token or key based on its name, such as ``hf`` for ``hf_token``.

    The result is empty if the name does not contain an owner. It is ``None`` if the name belongs to a
    password or a similar secret.
    """
    *owners, last = [word.lower() for word in _WORDS.split(name) if word]
    if last == b"id" and owners:
        *owners, last = owners
    if last not in (b"token", b"key"):
        return None
    return owners[-1] if owners else b""


# Values that programs print if no secret is set, and code in tracebacks, such as ``api_key=self.api_key``.
_NO_VALUES = _FILE.lowercase("values_that_are_none")
_CODE = tuple(b"self. os. args. config. cfg. kwargs optional[ str( < $ { [".split())
_CALL = lazy(rb"[A-Za-z_][\w.]*[(\[]")
_PLAIN = lazy(rb"[\w.~+/=-]{16,}")
# ``hf_…`` in advice shows at most the beginning of a token. Longer text might be a shortened secret.
_PLACEHOLDER = lazy(rb"[A-Za-z_-]{0,8}(?:\xe2\x80\xa6|\.{3})")


def _looks_secret(value: bytes, name: bytes) -> bool:
    lowered = value.lower()
    if lowered in _NO_VALUES or lowered == name.lower() or not value.strip(b"*"):
        return False
    if lowered.startswith(_CODE) or _CALL.match(value) or _PLACEHOLDER.fullmatch(value):
        return False
    owner = _owner(name)
    if owner in _NO_OWNERS:
        return False
    # Environment variables have names in uppercase.
    if owner is None or owner in _OWNERS or (owner and name.isupper()):
        return len(value) >= (3 if name.isupper() else 4) and value[:1].isascii()
    enough = len(value) >= 8 if name.isupper() else _PLAIN.fullmatch(value) is not None
    return enough and _looks_random(value)


def _looks_random(value: bytes) -> bool:
    """Return whether a value can be a random key: it contains digits and letters and is not a number."""
    lowered = value.lower()
    mixed = any(char in b"0123456789" for char in value) and any(char in _LETTERS for char in lowered)
    return mixed and not _is_number(value)


_LETTERS = b"abcdefghijklmnopqrstuvwxyz"


def _is_number(value: bytes) -> bool:
    try:
        float(value)
    except ValueError:
        return False
    return True
