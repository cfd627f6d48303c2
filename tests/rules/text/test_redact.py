"""Secrets are masked, and nothing that a reader needs to understand a failure."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from stallwatch_rules.text import redact as module
from stallwatch_rules.text.redact import HOST_SCHEMES, OPEN_SCHEMES, SECRET_SCHEMES, add_schemes, redact

# Made up, of the right shape. Put together here so that no scanner takes this file for a leak.
HF = "hf_" + "aBcDeFgHiJkLmNoPqRsTuVwXyZ01234567"
HEX40 = "0123456789abcdef" * 2 + "01234567"
OPENAI = "sk-" + "proj-" + "Ab1_" * 12
ANTHROPIC = "sk-" + "ant-api03-" + "Ab1-" * 12
AWS_ID = "AKIA" + "ABCDEFGHIJ012345"
AWS_KEY = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYzzzzzzzzzz"
GITHUB = "ghp_" + "a1B2" * 9
SLACK = "xoxb-" + "123456789012-abcdefABCDEF"
UUID = "693a91f6-7bbc-4bc4-97a0-0ec2f1fa5aaa"

SECRET = [
    (f"token {HF} is invalid", "token hf_*** is invalid", HF),
    (f"HF_TOKEN={HF} python train.py", "HF_TOKEN=*** python train.py", HF),
    (f"export WANDB_API_KEY={HEX40}", "export WANDB_API_KEY=***", HEX40),
    (f"wandb login --relogin {HEX40}", "wandb login --relogin ***", HEX40),
    (f"wandb.login(key='{HEX40}')", "wandb.login(key='***')", HEX40),
    (f"Incorrect API key provided: {OPENAI}.", "Incorrect API key provided: sk-***.", OPENAI),
    (f"x-api-key: {ANTHROPIC}", "x-api-key: ***", ANTHROPIC),
    (f"using {AWS_ID} for s3", "using AKIA*** for s3", AWS_ID),
    (f"aws_secret_access_key = {AWS_KEY}", "aws_secret_access_key = ***", AWS_KEY),
    (f"AWS_SECRET_ACCESS_KEY='{AWS_KEY}'", "AWS_SECRET_ACCESS_KEY='***'", AWS_KEY),
    (f"fatal: could not read from {GITHUB}", "fatal: could not read from ghp_***", GITHUB),
    ("github_pat_" + "11ABC_" * 6, "github_pat_***", "11ABC_11ABC"),
    (f"slack said no to {SLACK}", "slack said no to xoxb-***", SLACK),
    ("git clone https://bob:s3cr3t@example.com/x", "git clone https://***@example.com/x", "s3cr3t"),
    ("redis://:p4ss@10.0.0.1:6379/0", "redis://***@10.0.0.1:6379/0", "p4ss"),
    ("postgresql://u:a@b@db/x", "postgresql://***@db/x", "a@b"),
    ("mailtos://me:pw1@example.com?to=x", "mailtos://***@example.com?to=x", "pw1"),
    (
        "POST https://hooks.slack.com/services/T0/B0/abcXYZ 404",
        "POST https://hooks.slack.com/services/*** 404",
        "abcXYZ",
    ),
    (
        "https://discord.com/api/webhooks/123/tok-EN_x failed",
        "https://discord.com/api/webhooks/*** failed",
        "tok-EN_x",
    ),
    (
        f"https://open.feishu.cn/open-apis/bot/v2/hook/{UUID}",
        "https://open.feishu.cn/open-apis/bot/v2/hook/***",
        UUID,
    ),
    (
        f"https://oapi.dingtalk.com/robot/send?access_token={HEX40}&timestamp=1",
        "https://oapi.dingtalk.com/robot/send?access_token=***&timestamp=1",
        HEX40,
    ),
    (
        f"https://qyapi.weixin.qq.com/cgi-bin/webhook/send?key={UUID}",
        "https://qyapi.weixin.qq.com/cgi-bin/webhook/send?key=***",
        UUID,
    ),
    (
        "https://api.telegram.org/bot12345:AAbbCC_dd-ee/sendMessage",
        "https://api.telegram.org/bot***",
        "AAbbCC_dd-ee",
    ),
    (f'urls = ["lark://{UUID}", "json://localhost"]', 'urls = ["lark://***", "json://localhost"]', UUID),
    ("Could not notify slack://TokA/TokB/TokC", "Could not notify slack://***", "TokA"),
    ("Authorization: Bearer abc.DEF-123", "Authorization: Bearer ***", "abc.DEF-123"),
    ("{'authorization': 'Basic dXNlcjpwdw=='}", "{'authorization': 'Basic ***'}", "dXNlcjpwdw"),
    (f"curl -H 'bearer {HEX40}'", "curl -H 'bearer ***'", HEX40),
    ("password=hunter2 user=bob", "password=*** user=bob", "hunter2"),
    ('{"db_password": "two words", "n": 1}', '{"db_password": "***", "n": 1}', "two words"),
    ("Namespace(api_key='abcd1234', lr=1e-05)", "Namespace(api_key='***', lr=1e-05)", "abcd1234"),
    ("client_secret: q1w2e3r4", "client_secret: ***", "q1w2e3r4"),
    ("push_to_hub(token='abcdef0123456789abcd')", "push_to_hub(token='***')", "abcdef0123456789abcd"),
    ("--hub-token abcd1234 --lr 1e-5", "--hub-token *** --lr 1e-5", "abcd1234"),
    ("auth_token=abcd1234;", "auth_token=***;", "abcd1234"),
    ("run `export HF_TOKEN=abcd1234` first", "run `export HF_TOKEN=***` first", "abcd1234"),
    ("HF_TOKEN=`abcd1234` is refused", "HF_TOKEN=`***` is refused", "abcd1234"),
    ("password: ab`cd1234", "password: ***", "cd1234"),
    ("HF_TOKEN=abcdefgh1234…", "HF_TOKEN=***", "abcdefgh"),
    ("GET /b?X-Amz-Signature=abcdef0123&x=1", "GET /b?X-Amz-Signature=***&x=1", "abcdef0123"),
    ("saved to /home/alice/out/ckpt-5", "saved to ~/out/ckpt-5", "alice"),
    ('File "/Users/bob.lee/train.py", line 3', 'File "~/train.py", line 3', "bob.lee"),
    ("ls: /home/李雷: no such folder", "ls: ~: no such folder", "李雷"),
    ("/home/alice/x", "~/x", "alice"),
    ("PATH=/home/alice/bin:/home/alice/go", "PATH=~/bin:~/go", "alice"),
    ("read file:///home/alice/x", "read file://~/x", "alice"),
    ("g++ -I/home/alice/include (/home/alice/a.cc)", "g++ -I~/include (~/a.cc)", "alice"),
    ("'one\\n/home/alice/x'", "'one\\n~/x'", "alice"),
    ("文件在/home/alice/x", "文件在~/x", "alice"),
]

NOT_SECRET = [
    "{'loss': 0.5436, 'grad_norm': 1.25, 'learning_rate': 1e-05, 'epoch': 0.01}",
    "use_cls_token=True eos_token='</s>' tokens/s=123 num_tokens=12 pad_token_id=2",
    "bos_token: <s>, unk_token: '<unk>', mask_token=[MASK], image_token='<image>'",
    "pad_token='<|reserved_special_token_10|>' sep_token=None",
    "token: <|endoftext|>, special_token=control_token",
    "ms_per_token=0.1234567890123456789 time_per_token: 1.2345678901234567e-05",
    "Setting `pad_token_id` to `eos_token_id`:128001 for open-end generation.",
    "--hub_token <HUB_TOKEN> --token_type bpe --max-tokens 4096",
    "usage: train.py [--hub_token HUB_TOKEN] [--push-to-hub-token PUSH-TO-HUB-TOKEN]",
    "    loss_per_token = Fused2SoftcappedCrossEntropy.apply(x.view(-1, x.size(-1)), targets)",
    "    password = getpass.getpass(prompt), api_key = keys[0]",
    "hub_token=None, token=None, password=None, api_key=null, secret: false",
    "password=*** token=hf_*** https://***@example.com",
    "api_key=self.api_key, token=os.environ.get('HF_TOKEN')",
    f"commit {HEX40} checked out; sha256:{HEX40}",
    f"revision={HEX40}, cache key {HEX40}",
    "[rank3]: RuntimeError: NCCL error, rank=3 local_rank=3 world_size=8 (key=0x7f)",
    'File "/usr/lib/python3.10/site-packages/torch/nn/modules/module.py", line 1751, in _call_impl',
    'File "/root/miniconda3/envs/x/lib/python3.11/site-packages/deepspeed/runtime/engine.py", line 20',
    "tcp://10.0.0.1:29500 ssh://git@github.com/x/y.git file:///data/x:y",
    "Using https://huggingface.co/datasets/a/b?rev=main&page=2&key=short",
    "hf_hub_download hf_transfer sk-learn task-1234567890abcdefghijkl disk-abcdefghijklmnopqrstuvwx",
    "wandb: Find your API key in your browser here: https://wandb.ai/authorize",
    "store key: worker_0, keys=[1, 2], KeyError: 'token'",
    "monkey=1 keyboard: us tokenizer: Qwen2TokenizerFast, vocab key = value",
    "ValueError: bearer of bad news",
    "put `export HF_TOKEN=hf_…` in the launch script; WANDB_API_KEY=… or api_key=sk-... will do",
    "`WANDB_API_KEY=` and `HF_TOKEN=` are empty",
    "Secrets of the trade: none. Password prompt disabled",
    "/homework/alice /data/home_alice/ at home",
    "/data/home/alice/logs ./home/alice ../Users/alice ${ROOT}/home/alice s3://bucket/home/alice",
    "显存不足，令牌数 token: 12",
    "",
]


@pytest.mark.parametrize(("text", "expected", "secret"), SECRET)
def test_secret_is_masked_and_the_rest_is_kept(text: str, expected: str, secret: str) -> None:
    assert secret in text
    assert redact(text) == expected
    assert secret not in redact(text)


@pytest.mark.parametrize("text", NOT_SECRET)
def test_other_text_is_unchanged(text: str) -> None:
    assert redact(text) == text


def test_every_chat_url_is_masked() -> None:
    for scheme in SECRET_SCHEMES:
        assert redact(f"notify {scheme}://a1/b2?c=d now") == f"notify {scheme}://*** now"
    for scheme in HOST_SCHEMES:
        assert redact(f"notify {scheme}://host:80/b2?c=d now") == f"notify {scheme}://host:80/*** now"
    for scheme in OPEN_SCHEMES:
        assert redact(f"notify {scheme}://u:pw1@host/b now") == f"notify {scheme}://***@host/b now"


def test_schemes_of_a_newer_apprise_are_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    module._engine.cache_clear()
    monkeypatch.setattr(module, "_chat_schemes", module._chat_schemes)
    text = "newchat://T0ken/x https://example.org/x s3://bucket/x slack://T0ken"
    assert "newchat://T0ken" in redact(text)
    add_schemes(["newchat", "https", "azure", "no.regex|.*"])
    assert redact(text) == "newchat://*** https://example.org/x s3://bucket/x slack://***"


@pytest.fixture(autouse=True)
def _own_shapes_only() -> Iterator[None]:
    yield
    module._engine.cache_clear()


def test_bulk_redaction_equals_single_redaction() -> None:
    texts = [text for pair in zip((row[0] for row in SECRET), NOT_SECRET * 2, strict=False) for text in pair]
    assert redact("\n".join(texts)).split("\n") == [redact(text) for text in texts]
    assert redact("\r".join(texts)).count("\r") == len(texts) - 1


piece = st.sampled_from(
    [*(row[0] for row in SECRET), *NOT_SECRET, "\n", "\r\n", " ", "显存", "=", '"', "://", "@"]
)
#: A word that is joined to a secret is masked with it. Then nothing marks the next hash as that of a commit.
GLUED = re.compile(r"(?i)\S(?:commit|revision|rev|sha1?|hash|digest|git|artifact|version)\b")
noise = st.text(max_size=12)  # lone surrogates included: logs hold undecodable bytes


@settings(max_examples=150, deadline=None)
@given(parts=st.lists(st.one_of(piece, noise), max_size=12))
def test_redaction_is_idempotent_and_keeps_lines(parts: list[str]) -> None:
    text = "".join(parts)
    assume(not GLUED.search(text))
    once = redact(text)
    assert redact(once) == once
    assert once.count("\n") == text.count("\n")


@settings(max_examples=100, deadline=None)
@given(text=st.text(st.characters(codec=None), max_size=50))
def test_any_text_can_be_redacted(text: str) -> None:
    assert redact(text + "\udcff /home/bob/x").endswith("\udcff ~/x")


@pytest.mark.parametrize(
    "unit", ["://a:", "token=", "key='", "/home/", "eyJaaaaaaaaaaaa.", "bearer ", "?token=a", "_-"]
)
def test_time_is_linear_in_length(unit: str) -> None:
    assert redact(unit * (400_000 // len(unit)))  # a quadratic look takes minutes: more than a test may


def test_home_path_at_the_start_of_a_line_is_masked() -> None:
    assert redact("one\n/home/alice/x\r\n/home/bob") == "one\n~/x\r\n~"


def test_home_paths_can_be_kept() -> None:
    text = "/home/alice/token=abcdef0123456789abcdef/x"
    assert redact(text, homes=False).startswith("/home/alice/token=***")
