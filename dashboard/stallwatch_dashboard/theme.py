"""Define colors and Streamlit options. The palette by Okabe and Ito suits users with color blindness."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

BLUE, VERMILLION, GREEN, ORANGE, PURPLE, SKY, YELLOW = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#E69F00",
    "#CC79A7",
    "#56B4E9",
    "#F0E442",
)


@dataclass(frozen=True)
class Look:
    """The colors of a page and its charts, for the light or the dark theme."""

    cycle: tuple[str, ...]  #: colors of chart lines; the dark theme replaces deep blue with sky blue
    grey: str  #: color of limits and notes
    faint: str  #: the faintest shade that is visible on the page
    text: str
    page: str  #: background of the page
    box: str  #: background of code and controls
    line: str  #: color of axes, grid, and borders
    red: str = VERMILLION  #: color of problems

    @property
    def blue(self) -> str:
        return self.cycle[0]


LIGHT = Look(
    (BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILLION, "#595959", "#B59A00"),
    grey="#616E7C",
    faint="#FCE3C0",
    text="#1F2933",
    page="#FFFFFF",
    box="#F4F6F8",
    line="#D9DFE5",
)
DARK = Look(
    (SKY, ORANGE, GREEN, PURPLE, YELLOW, VERMILLION, "#A0A0A0", "#3A9BDC"),
    grey="#9AA5B1",
    faint="#4A3A1F",
    text="#E4E9EE",
    page="#12171D",
    box="#1B222B",
    line="#323C47",
)


def streamlit_options() -> dict[str, str]:
    """Return the Streamlit theme options, keyed by environment variable."""
    options = {"STREAMLIT_THEME_BASE_RADIUS": "0.4rem"}
    for name, look in (("LIGHT", LIGHT), ("DARK", DARK)):
        colours = {
            "PRIMARY": look.blue,
            "BACKGROUND": look.page,
            "SECONDARY_BACKGROUND": look.box,
            "TEXT": look.text,
            "BORDER": look.line,
            "LINK": look.blue,
        }
        options |= {f"STREAMLIT_THEME_{name}_{part}_COLOR": colour for part, colour in colours.items()}
    return options


#: The page's style sheet, which is constant and contains no data.
STYLE = f"<style>\n{Path(__file__).with_name('theme.css').read_text(encoding='utf-8')}</style>"


def uploader(button: str, most: str) -> str:
    """Return a CSS style that translates the file uploader, which Streamlit 1.67 shows only in English."""
    box = '[data-testid="stFileUploaderDropzone"]'
    words = {
        f'{box} button [data-testid="stMarkdownContainer"] p': button,
        f'{box} [data-testid="stFileUploaderDropzoneInstructions"] span': most,
    }
    rules = [
        f"{place} {{font-size: 0 !important;}}"
        f' {place}::after {{content: "{_quoted(text)}"; font-size: 0.875rem;}}'
        for place, text in words.items()
    ]
    return f"<style>{' '.join(rules)}</style>"


def _quoted(text: str) -> str:
    return text.replace("\\", "").replace('"', "").replace("<", "")
