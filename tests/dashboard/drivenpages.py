"""Helpers that run pages as Streamlit does, for the tests beside this file."""

from __future__ import annotations

import json

from streamlit.testing.v1 import AppTest

HOSTILE = "<script>alert(1)</script> **bold** [x](javascript:alert(1)) $x$ :red[y]"


def page(name: str, **query: str) -> AppTest:
    """Run the named page with this query, and return it."""
    app = AppTest.from_string(
        f"from stallwatch_dashboard.app import main\nmain({name!r})", default_timeout=120
    )
    for key, value in query.items():
        app.query_params[key] = value
    return app.run()


def texts(app: AppTest, *kinds: str) -> str:
    """Return the text of the elements of these kinds."""
    return "\n".join(str(element.value) for kind in kinds for element in app.get(kind))


def runs_shown(app: AppTest) -> list[dict[str, str]]:
    """Return the rows of the table of runs: each cell by its column's heading."""
    tables = [json.loads(item.proto.mixed.json or item.proto.json) for item in app.get("bidi_component")]
    return [
        {column["title"]: cell for column, cell in zip(found["columns"], row["cells"], strict=True)}
        for found in tables
        for row in found["rows"]
    ]
