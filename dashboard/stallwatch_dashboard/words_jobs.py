"""The words of an upload that is of several jobs, in English and Chinese."""

from __future__ import annotations

WORDS: dict[str, tuple[str, str]] = {
    "which_job": ("Report of", "查看报告"),
    "all_as_one_run": ("All files as one run", "所有文件当作一次运行"),
    "jobs_by_name": (
        "By their names, these files are of several jobs. Each was diagnosed by itself, the newest stands"
        " first, and the report is at first that of the newest that is in trouble.",
        "按文件名，这些文件属于多个作业。每个作业单独诊断，最新的在前；先显示最新的出问题的作业的报告。",
    ),
}
