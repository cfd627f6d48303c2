from __future__ import annotations

import pytest

from stallwatch_alerts.masking import hide_secrets, mask_url
from stallwatch_alerts.settings import AlertSettings


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
    ],
)
def test_masked_urls_hold_no_secret(url: str, masked: str) -> None:
    assert mask_url(url) == masked


def test_secrets_vanish_from_what_a_library_says() -> None:
    url = "json://user:pa55word@chat.example/hooks/s3cr3t-token?+X-Api-Key=abcdef123"
    said = f"cannot POST {url} (s3cr3t-token, abcdef123, pa55word) to chat.example"
    shown = hide_secrets(said, url)
    for secret in ("s3cr3t-token", "abcdef123", "pa55word"):
        assert secret not in shown
    assert "chat.example" in shown


def test_settings_do_not_show_their_urls() -> None:
    assert "SECRET" not in repr(AlertSettings(urls=("slack://SECRET",)))
