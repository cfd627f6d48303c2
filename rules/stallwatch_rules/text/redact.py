"""Secrets out of text before it is stored, shown or sent.

Known token shapes, credentials in URLs, webhook addresses, values assigned to secret-sounding names, and the
user's name in home paths. Linear time (google-re2), and one quick look for text without any of them, which is
nearly all. Line ends are never touched, so many lines may be redacted at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
import re2

from stallwatch_rules.text.lazy import lazy

MASK = b"***"

_SCHEMES = msgspec.json.decode(
    Path(__file__).with_name("chat_schemes.json").read_bytes(), type=dict[str, frozenset[str]]
)
# Addresses of chats as Apprise 2.3.0 writes them (apprise/plugins/*.py, protocol and secure_protocol),
# and two that earlier versions had. ``also_schemes`` takes what a later version adds, once Apprise is loaded.
SECRET_SCHEMES = _SCHEMES["secret"]  #: all that follows is hidden: a token may stand where a host does
HOST_SCHEMES = _SCHEMES["host"]  #: a server of the user's own: its address stays, the path may be a token
OPEN_SCHEMES = _SCHEMES["open"]  #: only a user's password is secret in them, or they are no chat's alone

_Replace = Callable[[Any], bytes]


def redact(text: str, *, homes: bool = True) -> str:
    """The text with its secrets masked; redacting twice changes nothing more.

    ``homes=False`` leaves the user's name in home paths: a path that its reader should find again.
    """
    data = text.encode(
        "utf-8", "surrogatepass"
    )  # lone surrogates (undecodable bytes of a log) come back as is
    if _HINTS.search(data) is None:
        return text
    # No rule reaches over a line's end, so all lines are done at once: a call costs more than a line.
    # The set fails open when it runs out of memory; then every rule is tried.
    for index in sorted(_WHICH.Match(data) or range(len(_RULES))):
        if index == _HOMES and not homes:
            continue
        expression, replace = _RULES[index]
        data = expression.sub(replace, data)
    return data.decode("utf-8", "surrogatepass")


def _keep_prefix(match: Any) -> bytes:
    """Group 1 tells the reader what was there; the rest is the secret."""
    prefix: bytes = match.group(1) or b""
    return prefix + MASK


def _keep_letters(match: Any) -> bytes:
    """The prefix by which the reader knows whose token it was."""
    found = _PREFIX.match(match.group(1))
    return (found[0] if found is not None else b"") + MASK


def _keep_mixed(match: Any) -> bytes:
    """A token has letters of both kinds; a time and a name behind it have not, nor has a hash."""
    whole: bytes = match.group(0)
    value = whole[len(match.group(1)) :]
    return bytes(match.group(1)) + MASK if _is_mixed(value) else whole


def _keep_unless_key(match: Any) -> bytes:
    """A hash is no key: it is hexadecimal. Neither is one long word."""
    whole, before, value = match.group(0), match.group(1), match.group(2)
    mixed = _is_mixed(value) and any(char in b"0123456789" for char in value)
    return bytes(whole.replace(value, MASK, 1)) if mixed and before is not None else bytes(whole)


def _keep_prefix_unless_empty(match: Any) -> bytes:
    """What follows on the line, such as the rest of the key with ``\\n`` in it; often nothing does."""
    whole: bytes = match.group(0)
    return _keep_prefix(match) if whole[len(match.group(1)) :].strip() else whole


def _is_mixed(value: bytes) -> bool:
    return value != value.lower() and value != value.upper()


_PREFIX = lazy(rb"nvapi-|[a-z]+_(?:live_|pat_)?|r8_|xai-|dapi|hvs\.|SG\.|LTAI|AKID")


def _keep_name(match: Any) -> bytes:
    """``name=value`` where the value is one that somebody would want to keep secret."""
    prefix, name, value = match.group(1, 2, 3)
    quote = value[:1] if value[:1] in (b'"', b"'", b"`") else b""
    bare = value.strip(quote) if quote else value
    ended = quote if len(value) > 1 and value.endswith(quote) else b""
    masked = quote + MASK + ended if _looks_secret(bare, name.lower()) else value
    return bytes(prefix + masked)


# Before "_token": whose token it is. Models have tokens of their own (eos_token, cls_token, image_token).
_TOKEN_OWNERS = frozenset(
    b"access api auth bearer bot csrf face github gitlab hf hub huggingface id private refresh secret "
    b"security session slack telegram user vault wandb".split()
)


def _is_vague(name: bytes) -> bool:
    """Whether the name may as well be a model's token."""
    *owners, last = name.replace(b"-", b"_").split(b"_")
    return last == b"token" and not (owners and owners[-1] in _TOKEN_OWNERS)


# Values that programs print where no secret is set, and code in tracebacks (``api_key=self.api_key``).
_NOT_SECRET = {b"none", b"null", b"true", b"false", b"nil", b"str", b"undefined", b"unset", b"redacted"}
_CODE = tuple(b"self. os. args. config. cfg. kwargs optional[ str( < $ { [".split())


_CALL = lazy(rb"[A-Za-z_][\w.]*[(\[]")
_PLAIN = lazy(rb"[\w.~+/=-]{16,}")
# ``hf_…`` in advice: at most a token's beginning. More than that may be a secret that somebody has cut.
_PLACEHOLDER = lazy(rb"[A-Za-z_-]{0,8}(?:\xe2\x80\xa6|\.{3})")


def _looks_secret(value: bytes, name: bytes) -> bool:
    lowered = value.lower()
    if lowered in _NOT_SECRET or lowered == name or not value.strip(b"*"):
        return False
    if lowered.startswith(_CODE) or _CALL.match(value) or _PLACEHOLDER.fullmatch(value):
        return False
    if not _is_vague(name):
        return len(value) >= 4
    mixed = any(char in b"0123456789" for char in value) and any(char in _LETTERS for char in lowered)
    return mixed and _PLAIN.fullmatch(value) is not None and not _is_number(value)


_LETTERS = b"abcdefghijklmnopqrstuvwxyz"


def _is_number(value: bytes) -> bool:
    try:
        float(value)
    except ValueError:
        return False
    return True


_NAMES = (
    r"(?:\w+[_-])?(?:passw(?:or)?d|passphrase|secret|secret[_-]?key|secret[_-]access[_-]key|api[_-]?key"
    r"|access[_-]key(?:[_-]id)?|account[_-]?key|private[_-]?key|credentials?|token)|pgpassword|mysql_pwd"
)
# A backtick ends a value where no word goes on: it is Markdown's around the assignment, or around the value.
# A quote that nothing ends, in a line that was cut, reaches to the line's end.
_VALUE = r"""(?:"[^"\n]*"?|'[^'\n]*'?|`[^`\s]+`|(?:[^\s"'`,;&)}\]]|`\w)+)"""

_ADDRESS = r"[a-z0-9]://"


def _chats(schemes: Iterable[str]) -> str:
    names = "|".join(sorted(schemes, key=lambda name: (-len(name), name)))
    return rf"""(?i)\b((?:{names})://)[^\s"'<>)*,;:][^\s"'<>)]*"""


def _own_hosts() -> str:
    names = "|".join(sorted(HOST_SCHEMES, key=lambda name: (-len(name), name)))
    return rf"""(?i)\b((?:{names})://[^\s"'<>)/]+/)[^\s"'<>)*,;:][^\s"'<>)]*"""


# What to look for quickly, what to replace, with what.
_TABLE: tuple[tuple[str, str, _Replace], ...] = (
    (r"hf_|api_org_", r"\b(hf_|api_org_)[A-Za-z0-9]{30,}", _keep_prefix),
    (
        r"sk-",
        r"\b(sk-)(?:[A-Za-z0-9]{20,}|(?:ant|proj|svcacct|admin|or-v1|lf|None)-[\w-]{16,})",
        _keep_prefix,
    ),
    (r"AKIA|ASIA", r"\b(AKIA|ASIA)[A-Z0-9]{16}\b", _keep_prefix),
    (r"gh[pousr]_|github_pat_", r"\b(gh[pousr]_|github_pat_)\w{20,}", _keep_prefix),
    (
        r"gl(?:pat|dt|rt|cbt|ptt|ft|soat|agent|imt)-|npm_|pypi-",
        r"\b(gl(?:pat|dt|rt|cbt|ptt|ft|soat|agent|imt)-|npm_|pypi-Ag)[\w.-]{20,}",
        _keep_prefix,
    ),
    (r"xox|xapp-", r"\b(xox[a-z](?:\.xox[a-z])?-|xapp-)[\w-]{10,}", _keep_prefix),
    (r"AIza|ya29\.|GOCSPX-", r"\b(AIza|ya29\.|GOCSPX-)[\w-]{20,}", _keep_prefix),
    # Model hubs, clouds and services: each has a prefix of its own.
    (
        r"nvapi-|gsk_|xai-|r8_|dapi|hvs\.|dckr_pat_|SG\.|[sr]k_live_|LTAI|AKID|tk_",
        r"\b(nvapi-[\w-]{20}|gsk_\w{20}|xai-\w{20}|r8_\w{20}|dapi[0-9a-f]{20}|hvs\.[\w-]{20}|dckr_pat_[\w-]{20}"
        r"|SG\.[\w-]{20}|[sr]k_live_\w{10}|LTAI[A-Za-z0-9]{10}|AKID[A-Za-z0-9]{20}|tk_[a-z0-9]{20})[\w.-]*",
        _keep_letters,
    ),
    # Telegram's bot tokens: a number, a colon, 35 characters.
    (r"\d:[\w-]{30}", r"\b(\d{6,12}:)[\w-]{33,40}", _keep_mixed),
    # DingTalk's signing secrets.
    (r"SEC[0-9a-f]{32}", r"\b(SEC)[0-9a-f]{32,}\b", _keep_prefix),
    # The lines of a private key or certificate: nothing but 60 to 76 characters of base64.
    (
        r"(?-i:[A-Za-z0-9+/]{60})",
        r"(?m)(^|[ \t:|>\"'])([A-Za-z0-9+/]{60,76}={0,2})(?:[ \t\r]*$)",
        _keep_unless_key,
    ),
    (r"BEGIN [A-Z ]*PRIVATE KEY", r"(BEGIN [A-Z ]*PRIVATE KEY-----)[^\n\"]*", _keep_prefix_unless_empty),
    (r"eyJ", r"\b(eyJ)[\w-]{10,}\.[\w-]{10,}\.[\w-]*", _keep_prefix),
    (
        r"wandb_v1_|key[\"']?[ \t]*[:=]|wandb login",
        r"(?i)(\bwandb_v1_|\bkey[\"']?[ \t]*[=:][ \t]*[\"']?|wandb login (?:--\S+ )*)"
        r"(?:[0-9a-f]{40}\b|\w{60,})",
        _keep_prefix,
    ),
    (
        r"hooks\.|/webhook|/bot|ftqq",
        r"(?i)(hooks\.slack(?:-gov)?\.com/[a-z]+/|discord(?:app)?\.com/api/(?:v\d+/)?webhooks/"
        r"|open-apis/bot/(?:v2/)?hook/|webhook\.office\.com/webhookb2/|api\.telegram\.org/(?:file/)?bot"
        r"""|sctapi\.ftqq\.com/)[^\s"'<>)]+""",
        _keep_prefix,
    ),
    # Looked for as any address: in the quick look, two hundred names would cost more than they spare.
    (_ADDRESS, _chats(SECRET_SCHEMES), _keep_prefix),
    (_ADDRESS, _own_hosts(), _keep_prefix),
    # Office 365 by Apprise: source, tenant, client id, secret. Other addresses of that name are of storage.
    (_ADDRESS, r"""(?i)\b(azure://[^\s/]+/[^\s/]+/[0-9a-f]{8}-[0-9a-f-]{27}/)[^\s"'<>)]+""", _keep_prefix),
    (r"mailtos?://", r"""(?i)\b(mailtos?://)[^\s"'<>?*]+@""", lambda m: bytes(m.group(1)) + MASK + b"@"),
    (
        r"[?&][\w-]+=",
        r"(?i)([?&](?:access_token|token|key|api_?key|auth|secret|pass(?:word)?|sig|signature|x-amz-signature"
        r"""|x-amz-credential|x-amz-security-token|x-goog-signature)=)[^\s&"'<>)#]{8,}""",
        _keep_prefix,
    ),
    (r"://[^\s/]*@", r"""(://)(?:[^\s/:@"'<>]*:[^\s/"'<>]+|[\w.-]{20,})@""", lambda _: b"://" + MASK + b"@"),
    (
        r"authorization|bearer",
        r"(?i)(\bauthorization[\"']?[ \t]*[:=][ \t]*[\"']?(?:bearer|basic|token)[ \t]+)[^\s\"',]+",
        _keep_prefix,
    ),
    (
        r"authorization[\"']?[ \t]*[:=]|cookie[\"']?:",
        r"(?i)(\b(?:proxy-)?authorization[\"']?[ \t]*[:=][ \t]*[\"']?"
        r"|\b(?:set-)?cookie[\"']?:[ \t]*[\"']?[\w.-]+=)"
        r"([A-Za-z0-9._~+/=%-]{16,})",
        _keep_prefix,
    ),
    (r"bearer", r"(?i)(\bbearer[ \t]+)[A-Za-z0-9._~+/=-]{20,}", _keep_prefix),
    (
        r"(?:passw|passphrase|pwd|secret|key|credential|token)[\w-]*[\"']?[ \t]*[:=]",
        rf"(?i)(\b({_NAMES})[\"']?[ \t]*(?::=|[:=])[ \t]*)({_VALUE})",
        _keep_name,
    ),
    (
        r"--[\w-]*(?:passw|passphrase|secret|key|credential|token)",
        rf"(?i)(--({_NAMES})[ \t]+)({_VALUE})",
        _keep_name,
    ),
    (r"sshpass|-u ", r"(\bsshpass -p ?|\bcurl [^\n|;]*?-u [\w.@-]+:)[^\s'\"]+", _keep_prefix),
    (r"\\Users\\", r"(?i)(\b[A-Z]:\\{1,2}Users\\{1,2})[^\\\s\"':;,]+", lambda m: bytes(m.group(1)) + b"~"),
    # Only where a path begins: /data/home/alice is no home, and masked it would be a path that is not there.
    (
        r"/home/|/Users/",
        r"""((?:^|[^\w./~*+@%$}\\-]|file://|(?:^|\s)-[ILB]|\\[nrt]|\x1b\[[\d;]*m))(?:/home/|/Users/)"""
        r"""[^/\s"'`:,;)\]}>]+""",
        lambda m: bytes(m.group(1)) + b"~",
    ),
)
_HOMES = len(_TABLE) - 1  #: the last one


def _options() -> Any:
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1  # bytes as they come, also such that are no UTF-8
    return options


def _set_of(patterns: Iterable[str]) -> Any:
    found = re2.Set.SearchSet(_options())
    for pattern in patterns:
        found.Add(f"(?i){pattern}".encode())
    found.Compile()
    return found


_HINTS = re2.compile(("(?i)" + "|".join(hint for hint, _, _ in _TABLE)).encode(), _options())
_WHICH = _set_of(hint for hint, _, _ in _TABLE)
_RULES = [(re2.compile(pattern.encode(), _options()), replace) for _, pattern, replace in _TABLE]
_OF_CHATS = next(at for at, row in enumerate(_TABLE) if row[1] == _chats(SECRET_SCHEMES))
_chat_schemes = SECRET_SCHEMES


def also_schemes(names: Iterable[str]) -> None:
    """Take further schemes for addresses of chats: those of the installed Apprise, once it is loaded."""
    global _chat_schemes
    new = {name.lower() for name in names if name.isascii() and name.isalnum()}
    new -= _chat_schemes | HOST_SCHEMES | OPEN_SCHEMES | {"http", "https", "file"}
    if new:
        _chat_schemes |= new
        _RULES[_OF_CHATS] = (re2.compile(_chats(_chat_schemes).encode(), _options()), _keep_prefix)
