"""The sentences about exceptions that no rule knows, in English and Chinese."""

from __future__ import annotations

OF_UNKNOWN: dict[str, tuple[str, str]] = {
    "unknown-may-be-cause": (
        "An exception that no rule knows may be the cause: {exception}.",
        "规则库未收录的异常可能才是原因：{exception}。",
    ),
    "perhaps": (
        "The cause is not known for certain; perhaps: {title}",
        "原因不能确定，可能是：{title}",
    ),
    "inferred-place": (
        "Concluded from where the exception was raised ({where}): no rule knows its wording, which stands"
        " below in full.",
        "根据异常抛出的位置（{where}）推断：规则库没有收录这句话，异常原文见下。",
    ),
    "inferred-words": (
        "Concluded from the exception's words, which are like those of this page alone: no rule knows its"
        " wording, which stands below in full.",
        "根据异常的用词推断（只与这一页相近）：规则库没有收录这句话，异常原文见下。",
    ),
}
