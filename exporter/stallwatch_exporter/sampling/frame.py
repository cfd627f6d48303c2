"""Samples as a pandas frame."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

from stallwatch_exporter.sampling.files import EXTRA, has_arrow
from stallwatch_exporter.sampling.rows import Sampling
from stallwatch_rules.samples.table import COLUMNS

if TYPE_CHECKING:
    import pandas as pd

_WHOLE = ("rank", "step", "total_steps", "line")


def frame_of(paths: Sequence[str | os.PathLike[str]]) -> pd.DataFrame:
    """All samples of the paths; what could not be read is told in a warning."""
    try:
        import pandas as pd
    except ImportError as error:
        raise ImportError(f"stallwatch.samples gives a pandas.DataFrame: {EXTRA}") from error

    sampling = Sampling(paths)
    if has_arrow():
        import pyarrow as pa

        from stallwatch_exporter.sampling.tables import SCHEMA

        frame: pd.DataFrame = pa.concat_tables([SCHEMA.empty_table(), *sampling.tables()]).to_pandas()
    else:
        frame = pd.DataFrame([row for rows in sampling.rows() for row in rows], columns=list(COLUMNS))
        frame["time"] = pd.to_datetime((frame["time"].astype(float) * 1e6).round(), unit="us", utc=True)
    for problem in sampling.problems:
        warnings.warn(str(problem), stacklevel=3)
    return frame.astype(dict.fromkeys(_WHOLE, "Int64"))  # whole numbers that may be missing
