"""Secrets of the right shape, made by a seed: no file of the repository holds one whole."""

from __future__ import annotations

import random
import string
from typing import NamedTuple

ALPHABETS = {
    "a": string.ascii_letters + string.digits,
    "w": string.ascii_letters + string.digits + "_-",
    "b": string.ascii_letters + string.digits + "+/",
    "x": "0123456789abcdef",
    "l": string.ascii_lowercase + string.digits,
    "U": string.ascii_uppercase + string.digits,
    "p": string.ascii_letters + string.digits + "!$%-_",
}


class Secret(NamedTuple):
    """A secret as a training prints it."""

    kind: str
    secret: str  #: what must not be seen, without the prefix that is published
    text: str  #: a line, or the lines of a key


#: Kind, published prefix, alphabet and length of what follows.
TOKENS = [
    line.split()
    for line in """
    huggingface hf_ a 34
    huggingface-org api_org_ a 34
    openai sk- a 48
    openai-project sk-proj- w 80
    anthropic sk-ant-api03- w 95
    openrouter sk-or-v1- x 64
    nvidia nvapi- w 64
    groq gsk_ a 52
    xai xai- a 80
    replicate r8_ a 37
    perplexity pplx- a 48
    together tgp_v1_ w 43
    fireworks fw_ a 24
    pinecone pcsk_ a 64
    langsmith lsv2_pt_ x 42
    jina jina_ w 60
    tavily tvly- a 32
    anyscale esecret_ a 26
    runpod rpa_ U 40
    prefect pnu_ a 36
    wandb-v1 wandb_v1_ a 80
    aws-access-key AKIA U 16
    aws-session ASIA U 16
    aws-bedrock ABSK b 110
    google-api AIza w 35
    google-oauth ya29. w 120
    google-client GOCSPX- w 28
    alibaba LTAI a 20
    tencent AKID a 32
    volcengine AKLT a 44
    yandex AQVN w 38
    ibm-cloud ApiKey- uuid 0
    digitalocean dop_v1_ x 64
    scaleway SCW U 17
    heroku HRKU-AA w 58
    flyio fm2_ b 120
    openshift sha256~ w 43
    netlify nfp_ a 36
    supabase sbp_ x 40
    tailscale tskey-auth- w 40
    github-classic ghp_ a 36
    github-app ghs_ a 36
    github-fine github_pat_ a 82
    gitlab glpat- w 20
    gitlab-runner glrt- w 20
    atlassian ATATT3 w 186
    npm npm_ a 36
    pypi pypi-AgEIcHlwaS5vcmc w 120
    rubygems rubygems_ x 48
    docker dckr_pat_ w 27
    artifactory AKCp a 69
    sourcegraph sgp_ x 40
    buildkite bkua_ x 40
    circleci CCIPAT_ a 40
    pulumi pul- x 40
    infracost ico- a 32
    postman PMAK- x 58
    databricks dapi x 32
    planetscale pscale_tkn_ w 43
    notion ntn_ a 46
    vault hvs. w 95
    doppler dp.pt. a 43
    slack-bot xoxb- w 50
    slack-app xapp- w 60
    dingtalk SEC x 64
    twilio SK x 32
    sendgrid SG. w 66
    mailgun key- x 32
    sendinblue xkeysib- x 64
    linear lin_api_ a 40
    figma figd_ w 40
    typeform tfp_ w 59
    grafana glsa_ a 41
    grafana-cloud glc_ b 60
    new-relic NRAK- U 27
    dynatrace dt0c01. U 88
    sentry sntryu_ x 64
    stripe sk_live_ a 24
    stripe-restricted rk_live_ a 24
    shopify shpat_ x 32
    shippo shippo_live_ x 40
    duffel duffel_live_ w 43
    easypost EZAK a 54
    frameio fio-u- w 64
    settlemint sm_pat_ a 16
    modelscope ms- uuid 0
    ntfy tk_ l 29
    age AGE-SECRET-KEY-1 U 58
    1password ops_eyJ b 260
    """.splitlines()
    if line.strip()
]
#: Where a training prints a token.
CONTEXTS = [
    "ValueError: the service refused {}",
    "requests.exceptions.HTTPError: 401 Client Error: Unauthorized for token {} (Request ID: Root=1)",
    "2026-11-20 23:56:32,534 - INFO - connecting with {}",
    "[rank3]: RuntimeError: login failed, got '{}' from the environment",
    "+ curl -s -H 'X-Thing: {}' https://example.org/v1/models",
    "subprocess.CalledProcessError: Command '['push', '{}']' returned non-zero exit status 1.",
    'WARNING: {{"detail": "unknown credential {}", "code": 401}}',
    "Namespace(lr=1e-05, extra='{}', seed=42)",
    "| extra | {} |",
    "\x1b[32m{}\x1b[0m is refused",
    "repr: 'one\\n{}\\ntwo'",
    "GET /login?next=%2Fx%3Fcode%3D{}&n=1",
]
#: Kind, alphabet and length of the secret, the line.
NAMED = [
    ("netrc", "a", 12, "machine api.example.org login bob password {}"),
    ("netrc-login", "p", 14, "login user password {}"),
    ("netrc-line", "a", 12, "  password {}"),
    ("env-key", "a", 20, "SITE_KEY={}"),
    ("env-key-short", "l", 8, "export CORP_MODEL_KEY={}"),
    ("env-token", "l", 12, "RUNNER_TOKEN={}"),
    ("env-secret", "p", 12, "MY_APP_SECRET={}"),
    ("env-of-srun", "a", 16, "+ srun --export=ALL,STALLWATCH_JOIN_SECRET={},OMP_NUM_THREADS=8 train.sh"),
    ("env-password", "p", 9, "DB_PASSWORD={}"),
    ("env-pass", "a", 10, "SMTP_PASS={}"),
    ("env-dump", "a", 40, 'declare -x COHERE_API_KEY="{}"'),
    ("environ-repr", "a", 32, "environ({{'HOME': '/root', 'MISTRAL_API_KEY': '{}', 'LANG': 'C'}})"),
    ("environ-assign", "a", 24, "    os.environ['COMET_API_KEY'] = '{}'"),
    ("environ-pairs", "a", 24, "[('PATH', '/bin'), ('JUDGE_TOKEN', '{}')]"),
    ("json", "a", 24, '{{"client_secret": "{}", "n": 1}}'),
    ("json-escaped", "a", 24, 'body: "{{\\"api_key\\": \\"{}\\"}}"'),
    ("yaml", "a", 18, "    secret_key: {}"),
    ("azure-openai", "x", 32, "AZURE_OPENAI_API_KEY: {}"),
    ("camel", "a", 20, '{{"accessToken":"{}"}}'),
    ("dots", "a", 24, "  wandb_api_key ................. {}"),
    ("argparse", "a", 24, "Namespace(hub_token='{}', lr=0.1)"),
    ("setenv", "a", 12, "setenv RUNNER_TOKEN {}"),
    ("fish", "a", 12, "set -gx RUNNER_KEY {}"),
    ("xml", "a", 12, "<password>{}</password>"),
    ("percent", "a", 16, "GET /cb?state=x%26access_token%3D{}%26n%3D1"),
    ("repr-of-lines", "a", 12, "env: 'A=1\\nSITE_KEY={}\\nB=2'"),
    ("coloured", "a", 12, "\x1b[1mDB_PASSWORD={}\x1b[0m"),
    ("bare-token", "a", 12, "TOKEN={}"),
    ("bare-key", "a", 16, "KEY={}"),
    ("api-key-in-words", "a", 16, "the API key is {} and it is refused"),
    ("token-in-words", "x", 40, "Authorization header: Token {}"),
    ("basic-in-words", "b", 24, "sent Basic {}"),
    ("chinese-in-words", "a", 10, "密码 {}"),
    ("prompt-with-realm", "a", 9, "Password for user bob (admin): {}"),
    ("flag", "a", 16, "python train.py --hub-token {} --lr 1e-5"),
    ("chinese-password", "a", 10, "登录失败，密码: {}"),
    ("chinese-passphrase", "a", 10, "口令：{}"),
    ("chinese-key", "a", 24, "密钥={}"),
    ("prompt", "a", 9, "Password for bob: {}"),
    ("prompt-url", "a", 9, "Password for 'https://bob@git.example.org': {}"),
    ("password-is", "a", 9, "the password is {}"),
    ("wandb-bare", "x", 40, "wandb: ERROR could not log in with {}"),
    ("wandb-login", "x", 40, "wandb login --relogin {}"),
    ("wandb-env", "x", 40, "WANDB_API_KEY={}"),
    ("gcp-key-id", "x", 40, '  "private_key_id": "{}",'),
    ("aws-secret", "b", 40, "botocore: using AKIAIOSFODNN7EXAMPLE / {} for s3"),
    ("aws-secret-first", "b", 40, "secret {} of AKIAIOSFODNN7EXAMPLE is refused"),
    ("aws-secret-named", "b", 40, "aws_secret_access_key = {}"),
    ("aws-token", "b", 200, "AWS_SESSION_TOKEN={}"),
    ("azure-storage", "b", 86, "AccountName=x;AccountKey={}==;EndpointSuffix=core.windows.net"),
    ("azure-client", "a", 32, "secret abc8Q~{} expired"),
    ("url-password", "a", 12, "git clone https://bob:{}@git.example.org/x.git"),
    ("url-database", "a", 12, "sqlalchemy.exc.OperationalError: postgresql://u:{}@db:5432/x"),
    ("url-parameter", "a", 24, "GET https://example.org/v1?api_key={}&n=1 500"),
    ("url-signature", "x", 64, "s3: https://b.example.org/k?X-Amz-Signature={}&X-Amz-Expires=1"),
    ("header", "w", 40, "Authorization: Bearer {}"),
    ("header-basic", "b", 24, "{{'Authorization': 'Basic {}'}}"),
    ("cookie", "a", 32, "Set-Cookie: session={}; Path=/"),
    ("slack-webhook", "a", 24, "POST https://hooks.slack.com/services/T0AB/B0CD/{} 404"),
    ("feishu-webhook", "uuid", 0, "https://open.feishu.cn/open-apis/bot/v2/hook/{}"),
    ("discord-webhook", "w", 60, "https://discord.com/api/webhooks/123456/{}"),
    ("chat-url", "a", 20, "could not notify slack://{}/x"),
    ("telegram", "a", 35, "telegram: bot 123456789:{} is unauthorised"),
    ("sshpass", "a", 10, "sshpass -p {} ssh worker-1"),
    ("curl-user", "a", 12, "curl -u bob:{} https://example.org"),
    ("mysql", "a", 10, "mysql -h db -u root -p{} runs"),
    ("docker-config", "b", 28, '{{"auths": {{"r.example.org": {{"auth": "{}"}}}}}}'),
    ("odbc", "a", 12, "Driver=x;Uid=sa;Pwd={};"),
    ("jwt", "w", 90, "id_token eyJhbGciOiJIUzI1NiJ9.{}.abcdefghijklmnop"),
]


def made(seed: int) -> list[Secret]:
    """Return secrets of every kind."""
    chance = random.Random(seed)
    found = []
    for number, (kind, prefix, alphabet, length) in enumerate(TOKENS):
        token = _random(chance, alphabet, int(length))
        context = CONTEXTS[(number + seed) % len(CONTEXTS)]
        found.append(Secret(kind, token, context.format(prefix + token)))
    for kind, alphabet, length, context in NAMED:
        token = _random(chance, alphabet, length)
        found.append(Secret(kind, token, context.format(token)))
    keys = (
        ("pem", "", 64, 3),
        ("ec-key", "", 64, 2),
        ("pem-of-a-rank", "[rank0]: ", 64, 5),
        ("ssh", "", 70, 3),
    )
    for kind, before, length, count in keys:
        lines = [_random(chance, "b", length) for _ in range(count)]
        lines.append(_random(chance, "b", 22) + "==")
        name = "OPENSSH PRIVATE KEY" if kind == "ssh" else "RSA PRIVATE KEY"
        whole = [f"-----BEGIN {name}-----", *lines, f"-----END {name}-----"]
        text = "\n".join(before + line for line in whole)
        found += [Secret(f"{kind}-{number}", line, text) for number, line in enumerate(lines)]
    return found


def _random(chance: random.Random, alphabet: str, length: int) -> str:
    if alphabet == "uuid":
        return "-".join(_random(chance, "x", part) for part in (8, 4, 4, 4, 12))
    letters = ALPHABETS[alphabet]
    while True:
        drawn = "".join(chance.choice(letters) for _ in range(length))
        mixed = any(map(str.isdigit, drawn)) and any(map(str.isalpha, drawn))
        if alphabet in "awbp":
            mixed = mixed and drawn != drawn.lower() and drawn != drawn.upper()
        if (mixed or length < 6) and drawn[:1].isalnum() and drawn[-1:].isalnum():
            return drawn


def leaked(secret: str, text: str, size: int = 8) -> str:
    """Return a run of this many characters of a secret in a text; a shorter secret as a whole."""
    size = min(size, len(secret))
    runs = (secret[at : at + size] for at in range(len(secret) - size + 1))
    return next((run for run in runs if run in text), "")


def benign(seed: int) -> list[str]:
    """Return lines that only look as if they held a secret."""
    chance = random.Random(seed)

    def some(alphabet: str, length: int) -> str:
        return "".join(chance.choice(ALPHABETS[alphabet]) for _ in range(length))

    def uuid() -> str:
        return _random(chance, "uuid", 0)

    found = []
    for _ in range(8):
        found += [
            f"commit {some('x', 40)}",
            f"HEAD is now at {some('x', 8)} Fix the loader",
            f"wandb: Git commit {some('x', 40)} is checked out",
            f"wandb: Syncing run {some('l', 8)} to https://wandb.ai/team/project/runs/{some('l', 8)}",
            f"wandb: Run data is saved locally in /data/wandb/run-20261120_235632-{some('l', 8)}",
            f"models--meta-llama--Llama-3.1-8B/snapshots/{some('x', 40)}/model-00001-of-00004.safetensors",
            f"sha256:{some('x', 64)} pulled from registry.example.org/train:{some('x', 12)}",
            f"dataset fingerprint {some('x', 16)}, cache-{some('x', 16)}.arrow",
            f"request id {uuid()}, trace {some('x', 32)}",
            f"job {uuid()} started on pod trainer-{some('x', 10)}-{some('l', 5)}",
            f"/data/run-{some('x', 8)}/global_step{chance.randrange(90000)}/zero_pp_rank_3_mp_rank_00.pt",
            f"cache_key={some('x', 32)} hit",
            f"sort_key: {some('l', 12)}, partition_key={some('x', 20)}",
            f"pad_token_id={chance.randrange(200000)} num_tokens={chance.randrange(10**9)}",
            f"tokens_per_second: {chance.random() * 1e5:.6f} ms_per_token={chance.random():.16f}",
            f"(key=0x{some('x', 12)}) store key: default_pg/0//{chance.randrange(64)}//cuda//{some('l', 5)}",
            f"step {chance.randrange(9999)} loss {chance.random():.5f} grad_norm {chance.random():.7f}",
            f"ncclUniqueId 0x{some('x', 16)} commHash {some('x', 16)} busId {some('x', 6)}",
        ]
    found += [
        line.strip()
        for line in """
        pad_token=</s> eos_token='</s>' bos_token="<s>" unk_token=<unk>
        max_new_tokens=1024 min_tokens: 16 max_tokens=4096 num_register_tokens=4
        RuntimeError: The size of tensor a (512) must match key_padding_mask (256) at dimension 1
        key_padding_mask=None attn_mask=None need_weights=False
        tokenizer.model_max_length = 131072, tokenizer.pad_token = '<|endoftext|>'
        Setting `pad_token_id` to `eos_token_id`:128001 for open-end generation.
        The attention mask and the pad token id were not set.
        Token indices sequence length is longer than the specified maximum (2049 > 2048)
        special_tokens_map.json {"eos_token": "<|im_end|>", "image_token": "<image>"}
        PAD_TOKEN=[PAD] IMAGE_TOKEN=<image> MAX_TOKENS=8192 EOS_TOKEN=<|im_end|>
        stop_token: <|eot_id|>, think_token=<think>, video_token: <video>
        model.layers.0.self_attn.q_proj.weight model.layers.31.mlp.down_proj.weight lm_head.weight
        Missing key(s) in state_dict: "model.embed_tokens.weight", "lm_head.weight".
        Unexpected key(s) in state_dict: "module.transformer.h.0.attn.c_attn.weight"
        KeyError: 'token' / KeyError: 'api_key' / KeyError: 'input_ids'
        api_key=self.api_key, token=os.environ.get('HF_TOKEN'), secret=cfg.secret
        hub_token=None, token=None, password=None, api_key=null, secret: false, use_auth_token=True
        usage: train.py [--hub_token HUB_TOKEN] [--push_to_hub_token PUSH_TO_HUB_TOKEN]
        --hub_token <HUB_TOKEN> --token_type bpe --key_frames 8
        wandb: Find your API key in your browser here: https://wandb.ai/authorize
        wandb: Currently logged in as: team. Use `wandb login --relogin` to force relogin
        Token is valid (permission: write). Your token has been saved to /root/.cache/huggingface/token
        git push https://github.com/team/repo.git main:refs/heads/main
        ssh://git@github.com/team/repo.git git@github.com:team/repo.git
        tcp://10.0.0.1:29500 env:// file:///dev/shm/x s3://bucket/path gs://bucket/x hdfs://nn:8020/x
        https://example.org/a/b?page=2&lang=en#top http://localhost:8080/metrics
        NCCL_DEBUG=INFO CUDA_VISIBLE_DEVICES=0,1,2,3 MASTER_ADDR=10.0.0.1 MASTER_PORT=29500
        PWD=/data/train OLDPWD=/data SSH_AUTH_SOCK=/tmp/ssh-1/agent.1 XDG_SESSION_ID=12
        password authentication is disabled; publickey is required
        Permission denied (publickey,password). The password prompt is off
        It needs a login without a password from the node where it runs to each node
        SSLError: certificate verify failed; key usage: digital signature
        -----BEGIN CERTIFICATE REQUEST----- is no key; -----BEGIN PUBLIC KEY-----
        authorization of the request took 3 ms; bearer of bad news; cookies are off
        headers = {"Authorization": f"Bearer {token}"}
        curl -H "Authorization: Bearer $TOKEN" https://example.org
        export HF_TOKEN=$(cat token.txt); export WANDB_API_KEY=${WANDB_API_KEY}
        AKIA is the prefix of a key's id; sk- is another; ghp_ is GitHub's
        hf_transfer hf_hub_download hf_xet sk-learn task-1234567890 disk-abc xai-bench tk_grad
        nvidia-smi: GPU-5b1fc6f0-4a3c-11ee-be56-0242ac120002 H100 80GB HBM3
        MASK_TOKEN: 103, CLS_TOKEN: 101, SEP_TOKEN: 102
        显存不足，令牌数 token: 12，密钥长度 token_count=4096
        请输入密码后继续；密码错误，请重试
        没有密钥：`ssh-keygen -t ed25519`，再对每个节点 `ssh-copy-id HOST`
        NoCredentialsError: Unable to locate credentials|Access Denied|Forbidden
        secretary problem, passwordless login, keyboard interrupt, monkey=1
        torch.Size([8, 1024, 4096]) dtype=torch.bfloat16 device='cuda:3'
        DefaultAzureCredential failed to retrieve a token from the included credentials.
        google.auth.exceptions.DefaultCredentialsError: Your default credentials were not found.
        botocore.exceptions.NoCredentialsError: Unable to locate credentials
        datasets.exceptions.DatasetNotFoundError: Dataset 'team/data' is gated; log in with a token
        key, value and query have 32, 8 and 32 heads; key cache is 12.5 GiB
        {'loss': 0.5436, 'grad_norm': 1.2578125, 'learning_rate': 9.999e-06, 'epoch': 0.01}
        12%|#2        | 1234/10000 [1:02:03<7:23:45,  3.04s/it, loss=0.613, v_num=3]
        [rank3]:[E1120 23:56:32.534 ProcessGroupNCCL.cpp:629] WorkNCCL(SeqNum=20345, OpType=ALLGATHER)
        gradient_accumulation_steps=16 train_micro_batch_size_per_gpu=2 zero3_init_flag=True
        aten::_scaled_dot_product_flash_attention void at::native::vectorized_elementwise_kernel<4>
        libcudart.so.12 libnccl.so.2 libtorch_cuda.so _ZN3c105ErrorC2ENS_14SourceLocationENSt7__cxx11
        """.splitlines()
        if line.strip()
    ]
    return found
