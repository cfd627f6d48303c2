from __future__ import annotations

import pytest

from stallwatch_alerts.masking import error_line, hide_secrets, mask_url
from stallwatch_alerts.settings import AlertSettings
from stallwatch_rules.text.redact import HOST_SCHEMES, OPEN_SCHEMES, SECRET_SCHEMES


@pytest.mark.parametrize(
    ("url", "masked"),
    [
        ("slack://TokenA1/TokenB2/TokenC3/#general", "slack://****"),
        ("lark://SECRET", "lark://****"),
        (
            "json://user:pa55word@chat.example:8080/hooks/SECRET?+X-Key=SECRET",
            "json://chat.example:8080/****",
        ),
        ("https://hooks.slack.com/services/SECRET", "https://hooks.slack.com/****"),
        ("SECRET", "****"),
        ("json://user:SEC/RET@chat.example/hook", "json://****"),  # the password contains a slash
        ("json://SECRET@chat.example/SECRET/to@all?a@b", "json://****"),
        ("json://chat.example/SECRET?to=a@b", "json://chat.example/****"),
        ("json://[::1]:80/SECRET", "json://[::1]:80/****"),
        ("json://user:SECRET", "json://****"),
    ],
)
def test_masked_urls_contain_no_secret(url: str, masked: str) -> None:
    assert mask_url(url) == masked


def test_secrets_are_removed_from_library_errors() -> None:
    url = "json://user:pa55word@chat.example/hooks/s3cr3t-token?+X-Api-Key=abcdef123"
    said = f"cannot POST {url} (s3cr3t-token, abcdef123, pa55word) to chat.example"
    shown = hide_secrets(said, url)
    for secret in ("s3cr3t-token", "abcdef123", "pa55word"):
        assert secret not in shown
    assert "chat.example" in shown


SHORT = "json://u:pw@chat.example/ab/c1/hook?k=Zq"


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        (
            "Max retries exceeded with url: /ab/c1/hook?k=Zq (refused)",
            "Max retries exceeded with url: **** (refused)",
        ),
        ("POST http://chat.example/ab/c1 failed", "POST http://chat.example/****/**** failed"),
        ("the token (c1) or 'ab' is wrong", "the token (****) or '****' is wrong"),
        ("cannot use Zq, absolutely", "cannot use ****, absolutely"),
        ("about the chat at chat.example: abc", "about the chat at chat.example: abc"),
    ],
)
def test_short_secrets_are_removed_in_url_positions(said: str, shown: str) -> None:
    assert hide_secrets(said, SHORT) == shown


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("slack://TokenA1/TokenB2/TokenC3", "Unparseable URL slack://T...1/T...2/T...3"),
        ("tgram://12345:AbCdEf/42", "Unparseable URL tgram://1...f"),
        ("lark://S3cretTok", "the token s3crettok is refused"),  # the host is in lower case
        ("json://h/caf%C3%A9-secret", "no such path /café-secret"),
    ],
)
def test_transformed_secrets_are_removed(url: str, said: str) -> None:
    shown = hide_secrets(said, url)
    assert "****" in shown
    for piece in ("T...", "1...", "...f", "s3cret", "café"):
        assert piece not in shown


def test_url_schemes_match_the_installed_apprise() -> None:
    """If this fails, Apprise has a new service: add its schemes to ``text/chat_schemes.json``."""
    from apprise.manager_plugins import NotificationManager

    known = SECRET_SCHEMES | HOST_SCHEMES | OPEN_SCHEMES
    assert set(NotificationManager().schemas()) <= known
    assert not SECRET_SCHEMES & OPEN_SCHEMES | HOST_SCHEMES & OPEN_SCHEMES | SECRET_SCHEMES & HOST_SCHEMES


def test_settings_do_not_show_their_urls() -> None:
    assert "SECRET" not in repr(AlertSettings(urls=("slack://SECRET",)))


@pytest.mark.parametrize(
    ("text", "line"), [("refused\r\nDETAIL: x", "refused"), ("\n refused\n[SQL: y]", "refused"), ("", "")]
)
def test_error_of_a_database_is_cut_at_any_line_break(text: str, line: str) -> None:
    assert error_line(OSError(text), "postgresql://me:secret@db/x") == line
