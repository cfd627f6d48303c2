"""What to do about a chat's refusal, by its error code, in English and Chinese.

Codes are those of the documentation that the modules in ``chats`` name; those without a chat are HTTP's and
the network's.
"""

from __future__ import annotations

_WRONG_URL = (
    "the URL is wrong or was revoked: copy it anew from the chat's settings",
    "地址有误或已失效：请从群机器人设置中重新复制",
)
_KEYWORD = (
    "the robot wants a key word: set it to Stallwatch, which stands in every message",
    "机器人设置了自定义关键词：请加入 Stallwatch，每条消息都包含它",
)
_ADDRESS = (
    "this host's address is not on the robot's list: add it, or use a signature instead",
    "本机出口 IP 不在机器人的白名单中：请加入，或改用加签",
)
_FEISHU_SIGN = (
    "the signature does not match: check the secret in the URL (feishu://…?secret=…) and this host's clock",
    "签名校验失败：请检查地址中的密钥（feishu://…?secret=…）以及本机时间",
)
_DINGTALK_SIGN = (
    "the signature does not match: check the secret in the URL (dingtalk://SEC…@…) and this host's clock",
    "签名校验失败：请检查地址中的密钥（dingtalk://SEC…@…）以及本机时间",
)
_TOO_MANY = (
    "too many messages: Stallwatch waits and sends it later; other programs may use the same robot",
    "发送过于频繁：Stallwatch 会稍后重发；可能有其他程序在使用同一个机器人",
)
_INVITE = (
    "the bot cannot post there: invite it to the channel, and check the channel's name",
    "机器人无法在该频道发言：请邀请它加入，并检查频道名称",
)
_OURS = (
    "the chat does not accept the form of the message: please report it, with this code",
    "消息格式未被接受：请附上此错误码向我们报告",
)

_BY_CHAT: dict[str, dict[str, tuple[str, str]]] = {
    "slack": {
        "invalid_token": _WRONG_URL,
        "no_service": _WRONG_URL,
        "no_active_hooks": _WRONG_URL,
        "no_team": _WRONG_URL,
        "invalid_auth": _WRONG_URL,
        "not_authed": _WRONG_URL,
        "token_revoked": _WRONG_URL,
        "account_inactive": _WRONG_URL,
        "channel_not_found": _INVITE,
        "not_in_channel": _INVITE,
        "channel_is_archived": ("the channel is archived: choose another", "频道已归档：请换一个频道"),
        "is_archived": ("the channel is archived: choose another", "频道已归档：请换一个频道"),
        "action_prohibited": (
            "an administrator restricts posting there: ask them",
            "管理员限制了该频道的发言：请联系管理员",
        ),
        "missing_scope": (
            "give the bot the scope chat:write and install it again",
            "请为机器人添加 chat:write 权限并重新安装",
        ),
        "rate_limited": _TOO_MANY,
        "ratelimited": _TOO_MANY,
        "invalid_blocks": _OURS,
        "invalid_payload": _OURS,
    },
    "discord": {
        "10015": _WRONG_URL,
        "50027": _WRONG_URL,
        "10003": (
            "the channel or thread is gone: make a new webhook",
            "频道或子区已不存在：请新建 Webhook",
        ),
        "50035": _OURS,
        "50006": _OURS,
    },
    "telegram": {
        "401": _WRONG_URL,
        "404": _WRONG_URL,
        "403": (
            "the bot was blocked or removed: write to it, or add it to the group again",
            "机器人被屏蔽或移出：请先给它发消息，或重新加入群组",
        ),
        "chat-not-found": (
            "no such chat: write to the bot first; the id of a group begins with -",
            "找不到该会话：请先给机器人发一条消息；群组的 id 以 - 开头",
        ),
        "migrated": (
            "the group has become a supergroup: put its new id into the URL",
            "群组已升级为超级群：请把新的 id 写入地址",
        ),
        "429": _TOO_MANY,
        "400": _OURS,
    },
    "feishu": {
        "19001": _WRONG_URL,
        "19021": _FEISHU_SIGN,
        "19022": _ADDRESS,
        "19024": _KEYWORD,
        "9499": _OURS,
        "11232": _TOO_MANY,
        "11233": _TOO_MANY,
    },
    "dingtalk": {
        "sign": _DINGTALK_SIGN,
        "keyword": _KEYWORD,
        "ip": _ADDRESS,
        "310000": (
            "a security setting of the robot refuses it: see its key words, signature and addresses",
            "被机器人的安全设置拒绝：请检查关键词、加签和 IP",
        ),
        "300001": _WRONG_URL,
        "300005": _WRONG_URL,
        "400101": _WRONG_URL,
        "400102": ("the robot is switched off: switch it on in the group", "机器人已停用：请在群设置中启用"),
        "130101": _TOO_MANY,
        "460101": _OURS,
        "40035": _OURS,
    },
    "wecom": {
        "93000": _WRONG_URL,
        "93004": ("the robot is switched off: switch it on in the group", "机器人已停用：请在群中启用"),
        "93008": _INVITE,
        "45009": _TOO_MANY,
        "45033": _TOO_MANY,
        "40058": _OURS,
    },
    "teams": {
        "DirectApiAuthorizationRequired": _WRONG_URL,
        "AuthorizationFailed": _WRONG_URL,
        "WorkflowNotFound": _WRONG_URL,
        "WorkflowTriggerNotFound": _WRONG_URL,
        "WorkflowTriggerIsNotEnabled": (
            "the workflow is switched off: switch it on in Power Automate",
            "工作流已关闭：请在 Power Automate 中启用",
        ),
        "TriggerInputSchemaMismatch": (
            'the workflow is not of the kind "post to a channel when a webhook request is received"',
            "工作流类型不符：应为“收到 Webhook 请求时发布到频道”",
        ),
    },
    "smtp": {
        "smtp-535": (
            "user or password is refused; many providers want a password of its own for programs",
            "用户名或密码错误；许多邮箱需要单独的授权码",
        ),
        "smtp-530": (
            "the server wants a log-in: mailtos://user:password@…",
            "服务器要求登录：mailtos://用户:授权码@…",
        ),
        "smtp-550": (
            "the recipient is refused: check ?to= and ?from=",
            "收件人被拒绝：请检查 ?to= 与 ?from=",
        ),
        "smtp-553": ("the sender is refused: check ?from=", "发件人被拒绝：请检查 ?from="),
        "smtp-421": _TOO_MANY,
        "smtp-451": _TOO_MANY,
        "smtp-552": _OURS,
    },
}
_COMMON: dict[str, tuple[str, str]] = {
    "url": (
        "docs/chats.md lists the forms of URLs",
        "地址格式见 docs/chats.md",
    ),
    "web": (
        "write json://… for a generic webhook (jsons://… for HTTPS), or the chat's own form (docs/chats.md)",
        "通用 Webhook 请写作 json://…（HTTPS 用 jsons://…），聊天软件的地址格式见 docs/chats.md",
    ),
    "address": (
        "check host and port: a port is a number from 1 to 65535",
        "请检查主机与端口：端口为 1 至 65535 的数字",
    ),
    "no-tls": (
        "the port is wrong, or the server has no TLS: then write json:// for jsons:// (mailto:// for mailtos://)",
        "端口有误，或服务器未启用 TLS：请将 jsons:// 改为 json://（mailtos:// 改为 mailto://）",
    ),
    "wants-tls": (
        "write jsons:// for json://, or give the port that takes HTTP",
        "请将 json:// 改为 jsons://，或改用 HTTP 端口",
    ),
    "unreachable": (
        "this machine has no way there: check address, routes and proxies (HTTPS_PROXY)",
        "本机无法到达该地址：请检查地址、路由与代理（HTTPS_PROXY）",
    ),
    "broken": (
        "something else may listen there, or wants TLS (jsons:// for json://): check the port, and proxies",
        "该端口可能是其他服务，或要求 TLS（将 json:// 改为 jsons://）：请检查端口与代理",
    ),
    "dns": (
        "the host's name is not known here: check it, and whether this machine has a way out (HTTPS_PROXY)",
        "无法解析主机名：请检查拼写，以及本机能否访问外网（HTTPS_PROXY）",
    ),
    "refused": (
        "nobody listens there: check host and port, and firewalls",
        "对方端口无人监听：请检查主机、端口与防火墙",
    ),
    "timeout": (
        "no answer: check firewalls and proxies (HTTPS_PROXY); ?rto=10 in the URL waits longer",
        "没有应答：请检查防火墙与代理（HTTPS_PROXY）；可在地址中用 ?rto=10 延长等待",
    ),
    "connection": (
        "the connection breaks: check firewalls and proxies (HTTPS_PROXY)",
        "连接中断：请检查防火墙与代理（HTTPS_PROXY）",
    ),
    "proxy": ("check HTTPS_PROXY", "请检查 HTTPS_PROXY"),
    "tls": (
        "the host's name must be in the certificate; REQUESTS_CA_BUNDLE names a file with the authority "
        "of a server or proxy of your own",
        "主机名须与证书一致；自建服务器或代理的根证书可用 REQUESTS_CA_BUNDLE 指定",
    ),
    "malformed": (
        "somebody else answered in the chat's place: a proxy, or a page that asks for a log-in",
        "应答的不是该聊天服务：可能是代理或登录页面",
    ),
    "http-401": _WRONG_URL,
    "http-403": _WRONG_URL,
    "http-404": _WRONG_URL,
    "http-410": _WRONG_URL,
    "http-407": ("the proxy wants a log-in: HTTPS_PROXY", "代理要求登录：请检查 HTTPS_PROXY"),
    "http-413": _OURS,
    "http-429": _TOO_MANY,
}
_DOWN = ("the chat has a problem of its own: try again later", "聊天服务自身出现问题：请稍后再试")


def remedy(chat: str, code: str, language: str) -> str:
    """What to do; empty where there is no advice for the code."""
    found = _BY_CHAT.get(chat, {}).get(code) or _COMMON.get(code)
    if found is None and code.startswith("http-5"):
        found = _DOWN
    return "" if found is None else found[language.startswith("zh")]
