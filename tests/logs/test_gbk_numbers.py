"""The metrics of a long log in the encoding of Chinese Windows equal those of the same log in UTF-8."""

from __future__ import annotations

from pathlib import Path

import pytest

from stallwatch_exporter.postmortem.diagnose import Options, diagnose_paths
from stallwatch_rules.pages.catalogue import Catalogue


@pytest.mark.parametrize("lead", ["", "训练中：", "训练: "])
@pytest.mark.parametrize("encoding", ["utf-8", "gb18030"])
def test_metrics_of_a_gbk_log_equal_those_in_utf_8(
    tmp_path: Path, catalogue: Catalogue, encoding: str, lead: str
) -> None:
    lines = [
        f"2026-11-20 08:{step // 60:02}:{step % 60:02} [信息] {lead}第 {step}/1000 步，"
        f"损失={3 - step / 100:.4f}，耗时 1.0 秒"
        for step in range(1, 121)
    ]
    log = tmp_path / "train.log"
    log.write_text("\n".join(lines) + "\n", encoding=encoding)
    progress = diagnose_paths([log], Options(catalogue))[0].progress
    assert (progress.first_step, progress.last_step, progress.total_steps) == (1, 120, 1000)
    assert progress.last_loss == 1.8


def test_sentence_after_a_prefix_is_not_a_metric(tmp_path: Path, catalogue: Catalogue) -> None:
    log = tmp_path / "train.log"
    log.write_text("训练中：第 3 步损失变为 0.5\n训练中：第 4 步我们计算损失 3\n" * 50)
    progress = diagnose_paths([log], Options(catalogue))[0].progress
    assert (progress.last_step, progress.last_loss) == (None, None)
