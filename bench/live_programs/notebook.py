"""Run a notebook with ``jupyter nbconvert --execute``. The output of its kernel appears only at the end."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from common import run

_SETUP = f"import sys; sys.path.insert(0, {str(Path(__file__).resolve().parent)!r})\nfrom loop import Loop"


def cell(source: str) -> dict[str, Any]:
    return {"cell_type": "code", "metadata": {}, "outputs": [], "execution_count": None, "source": source}


def execute(*sources: str) -> None:
    """Write the notebook and replace this process with the process that runs the notebook."""
    cells = [cell(source) for source in (_SETUP, *sources)]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    notebook = {"cells": cells, "metadata": kernel, "nbformat": 4, "nbformat_minor": 4}
    Path("train.ipynb").write_text(json.dumps(notebook))
    convert = ["-m", "nbconvert", "--to", "notebook", "--execute", "--ExecutePreprocessor.timeout=3600"]
    os.execv(sys.executable, [sys.executable, *convert, "train.ipynb"])


def trains() -> None:
    execute("loop = Loop()\nloop.train(220)", "loop.evaluate(10)")


def kernel_is_idle_between_cells() -> None:
    """Leave the kernel idle for a minute and a half between two cells."""
    from jupyter_client.manager import start_new_kernel

    manager, client = start_new_kernel(kernel_name="python3")
    for source in (_SETUP, "loop = Loop()\nloop.train(100)"):
        client.execute_interactive(source, timeout=600)
    time.sleep(90)
    client.execute_interactive("loop.train(40)", timeout=600)
    client.stop_channels()
    manager.shutdown_kernel()


def cell_hangs() -> None:
    execute(
        "loop = Loop()\nloop.train(80)",
        "import time\nfrom common import HOUR, event\n"
        "def wait_for_labels():\n    event('hang')\n    time.sleep(HOUR)\n"
        "for number in range(500):\n    loop.train(1)\n    if number == 5:\n        wait_for_labels()",
    )


if __name__ == "__main__":
    run(globals())
