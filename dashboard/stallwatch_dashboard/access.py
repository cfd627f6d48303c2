"""Assign users the role of viewer or operator, based on claims from an OpenID Connect provider."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from stallwatch_rules.files import open_private, replace

Role = Literal["viewer", "operator"]
"""Viewers can see everything. Operators can also, for example, upload files or acknowledge incidents."""

CALLBACK = "/oauth2callback"  #: path to which the provider redirects users (Streamlit 1.50, st.login)
EVERYBODY = "*"


@dataclass(frozen=True)
class Login:
    """The login settings. If ``metadata_url`` is empty, the dashboard has no login."""

    metadata_url: str = ""  #: the provider's discovery document, ``…/.well-known/openid-configuration``
    client_id: str = ""
    client_secret: str = field(default="", repr=False)
    cookie_secret: str = field(default="", repr=False)  #: key that signs the cookie; if empty, generated
    viewers: tuple[str, ...] = ()  #: such as ``ann@example.org``, ``@example.org``, ``group:ml``, or ``*``
    #: Entries in the same format as `viewers`. Operators do not have to be listed as viewers.
    operators: tuple[str, ...] = ()
    groups_claim: str = "groups"  #: the claim that lists a person's groups
    scopes: tuple[str, ...] = ("openid", "email", "profile")

    @property
    def on(self) -> bool:
        return bool(self.metadata_url)

    def problem(self, address: str) -> str | None:
        """Return the reason why people cannot sign in at `address`, or ``None`` if they can."""
        if not self.on:
            if self.client_id or self.client_secret or self.viewers or self.operators:
                return "login.metadata_url is missing; set it to …/.well-known/openid-configuration"
            return None
        for name in ("client_id", "client_secret"):
            if not getattr(self, name):
                return f"login.{name} is missing; the provider issues it when you register the dashboard"
        if not _is_address(self.metadata_url):
            return f"login.metadata_url is not an http(s) address: {self.metadata_url}"
        if not self.viewers and not self.operators:
            return '[login] viewers and operators are empty; add at least one entry, such as "@example.org"'
        if not _is_address(address):
            return f"dashboard.url is not an http(s) address: {address}"
        for entry in (*self.viewers, *self.operators):
            if not _is_entry(entry):
                return (
                    f"login has an invalid entry {entry!r}; write an email address, @domain, group:name or *"
                )
        return None


def role_of(login: Login, claims: Mapping[str, Any]) -> Role | None:
    """Return the role of the person with these claims, or ``None`` if the person has no access."""
    known = _names_of(claims, login.groups_claim)
    if _listed(login.operators, known):
        return "operator"
    return "viewer" if _listed(login.viewers, known) else None


def secrets_of(login: Login, address: str, cookie_secret: str) -> dict[str, Any]:
    """Return the ``[auth]`` section for the Streamlit secrets (streamlit 1.67, auth_util.py)."""
    return {
        "redirect_uri": address.rstrip("/") + CALLBACK,
        "cookie_secret": login.cookie_secret or cookie_secret,
        "client_id": login.client_id,
        "client_secret": login.client_secret,
        "server_metadata_url": login.metadata_url,
        "client_kwargs": {"scope": " ".join(login.scopes), "prompt": "select_account"},
    }


def _names_of(claims: Mapping[str, Any], groups_claim: str) -> set[str]:
    """Return every entry that, in a list of viewers or operators, matches this person."""
    names = {EVERYBODY}
    email = claims.get("email")
    # Ignore an unverified email address, because a person can enter someone else's address at the provider.
    if isinstance(email, str) and claims.get("email_verified") is not False and email.count("@") == 1:
        email = email.strip().casefold()
        names |= {email, "@" + email.partition("@")[2]}
    groups = claims.get(groups_claim)
    if isinstance(groups, str):
        groups = [groups]
    if isinstance(groups, Sequence):
        names |= {f"group:{group}" for group in groups if isinstance(group, str)}
    return names


def _listed(entries: Sequence[str], names: set[str]) -> bool:
    return any((entry if entry.startswith("group:") else entry.casefold()) in names for entry in entries)


def _is_entry(entry: str) -> bool:
    if entry == EVERYBODY or (entry.startswith("group:") and len(entry) > len("group:")):
        return True
    before, at, domain = entry.partition("@")
    return bool(at and domain) and "@" not in domain and " " not in before + domain


def _is_address(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        return False


_FILE = "dashboard-cookie-secret"
_SHORTEST = 32


def kept_cookie_secret(home: Path) -> str:
    """Return the cookie secret, which is stored so that a restart does not sign people out.

    A stored secret is replaced if other users could have read or written it. If no secret can be stored, the
    new secret is valid only until this process ends.
    """
    path = home / _FILE
    with suppress(OSError, ValueError), open_private(path, others=0o077) as file:
        kept = file.read().decode("ascii").strip()
        if len(kept) >= _SHORTEST:
            return kept
    made = secrets.token_urlsafe(48)
    with suppress(OSError):
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        replace(path, made.encode())
    return made
