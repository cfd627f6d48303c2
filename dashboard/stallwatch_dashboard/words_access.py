"""The words of signing in and of what a role may do, in English and Chinese."""

from __future__ import annotations

WORDS: dict[str, tuple[str, str]] = {
    "sign_in": ("Sign in", "登录"),
    "sign_in_next": (
        "This dashboard shows logs of training runs; sign in to see it.",
        "此页面显示训练日志，请先登录。",
    ),
    "sign_out": ("Sign out", "退出登录"),
    "not_allowed": ("You are signed in, but may not see this dashboard", "你已登录，但无权查看此页面"),
    "not_allowed_next": (
        "{0} is neither a viewer nor an operator. Whoever runs this dashboard can add you under [login].",
        "{0} 既不是查看者也不是操作者。请联系此页面的管理员在 [login] 中添加你。",
    ),
    "nameless": ("This account, which has no e-mail address,", "此账号（没有邮箱地址）"),
    "role_viewer": ("viewer", "查看者"),
    "role_operator": ("operator", "操作者"),
    "operators_only": (
        "You are a viewer. Only operators upload logs, and keep or delete reports.",
        "你是查看者。只有操作者可以上传日志、保存或删除报告。",
    ),
    "upload_waits": ("Waiting for other uploads to be read …", "正在等待其他上传读取完成 …"),
    "upload_failed": (
        "These files could not be read ({0}); run stallwatch diagnose where they lie.",
        "无法读取这些文件（{0}）；请在文件所在处运行 stallwatch diagnose。",
    ),
    "operators_act": (
        "Only operators acknowledge and silence incidents and leave notes.",
        "只有操作者可以确认或静默事件、添加备注。",
    ),
    "operators_send": (
        "Only operators send test messages.",
        "只有操作者可以发送测试消息。",
    ),
}
