"""What ``barsteps`` says, for all rows of a block at once."""

from __future__ import annotations

import numpy as np

from stallwatch_rules.samples.barsteps import NEAR, BarSteps, Drawn
from stallwatch_rules.samples.blocks import NO_RANK, Block, Whole
from stallwatch_rules.samples.table import FIELDS


def place_losses(block: Block, bars: BarSteps) -> Block:
    """Give the losses without a step that of the bar beside them, and leave out the bars in their own lines.

    ``bars`` are those before the block.
    """
    kept = np.ones(block.size, bool)
    none = np.zeros(block.size, bool)
    total, step, loss = (block.valid.get(name, none) for name in ("total_steps", "step", "loss"))
    drawn = block.bare & total & step
    lacking = loss & ~block.bare & ~step
    for number in np.unique(block.rank[drawn | lacking]).tolist():
        rank = None if number == NO_RANK else number
        rows = np.flatnonzero(drawn & (block.rank == number))
        before = bars.last.get(rank, Drawn(-NEAR - 1, 0, 0))
        lines = np.append(before.line, block.line[rows])
        steps = np.append(before.step, block.numbers["step"][rows] if len(rows) else [])
        totals = np.append(before.total, block.numbers["total_steps"][rows] if len(rows) else [])
        longest = np.maximum(np.maximum.accumulate(totals), bars.longest.get(rank, 0))
        wanted = np.flatnonzero(lacking & (block.rank == number))
        at = np.searchsorted(lines, block.line[wanted], side="right") - 1
        near = (block.line[wanted] - lines[at] <= NEAR) & (totals[at] > 0)
        beside = near & (totals[at] == longest[at])
        if beside.any():
            bars.trained.setdefault(rank, int(totals[at[beside][0]]))
        beside |= near & (totals[at] == bars.trained.get(rank, -1))
        if beside.any():
            block.put("step", wanted[beside], steps[at[beside]])
            block.put("total_steps", wanted[beside], totals[at[beside]])
            here = beside & (lines[at] == block.line[wanted])
            _join(block, wanted[here], rows[at[here] - 1])
            kept[rows[at[here] - 1]] = False
        if len(rows):
            bars.longest[rank] = int(longest[-1])
            bars.see(rank, Drawn(int(lines[-1]), int(steps[-1]), int(totals[-1])))
    return block if kept.all() else block.taken(np.flatnonzero(kept))


def _join(block: Block, losses: Whole, drawings: Whole) -> None:
    """Add to losses what the bars in their lines tell."""
    for name in [name for name in FIELDS if name in block.numbers]:
        told = block.valid[name][drawings] & ~block.valid[name][losses]
        block.put(name, losses[told], block.numbers[name][drawings[told]])
