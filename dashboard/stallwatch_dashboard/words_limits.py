"""The words of what is not there, not known or not drawn, in English and Chinese."""

from __future__ import annotations

WORDS: dict[str, tuple[str, str]] = {
    "no_such_page": ("There is no page {0}", "没有页面 {0}"),
    "no_such_page_next": ("These are the pages:", "可用的页面："),
    "incidents_unreadable": ("Incidents cannot be read: {0}", "无法读取事件：{0}"),
    "no_log": ("No log copies of this run here.", "此处没有该任务的日志副本。"),
    "unknown_cause": ("something that no rule knows", "没有规则认识的原因"),
    "threshold_above": ("stall threshold {0}: above this picture", "停滞阈值 {0}：在图的上方"),
    "few_of_ranks": ("{0} ({1} of {2} ranks drawn)", "{0}（共 {2} 个 rank，画出 {1} 个）"),
    "more_reports": ("All {0}", "全部 {0} 份"),
    "upload_button": ("Upload", "选择文件"),
    "upload_most": ("{0} per file", "每个文件最多 {0}"),
    "every_family": ("every family", "全部类别"),
    "status_stable": ("stable", "稳定"),
    "status_incubating": ("incubating", "试用"),
    "status_retired": ("retired", "已停用"),
    "at_the_last_step": ("{0}, at the last step", "{0}，最后一步时"),
}
