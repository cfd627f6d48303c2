"""A diagnosis for people and programs: a terminal, an issue tracker, JSON."""

from stallwatch_rules.report.json import to_json
from stallwatch_rules.report.markdown import to_markdown
from stallwatch_rules.report.terminal import print_report

__all__ = ["print_report", "to_json", "to_markdown"]
