"""Colours and Streamlit's settings. The palette is Okabe and Ito's, told apart with any colour vision."""

from __future__ import annotations

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
#: Colours of ranks in one chart. On the dark page the deep blue gives way to the sky one.
LIGHT_CYCLE = (BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILLION, "#595959", "#B59A00")
DARK_CYCLE = (SKY, ORANGE, GREEN, PURPLE, YELLOW, VERMILLION, "#A0A0A0", "#3A9BDC")

LIGHT = {
    "primaryColor": BLUE,
    "backgroundColor": "#FFFFFF",
    "secondaryBackgroundColor": "#F4F6F8",
    "textColor": "#1F2933",
    "borderColor": "#D9DFE5",
    "linkColor": BLUE,
}
DARK = {
    "primaryColor": SKY,
    "backgroundColor": "#12171D",
    "secondaryBackgroundColor": "#1B222B",
    "textColor": "#E4E9EE",
    "borderColor": "#323C47",
    "linkColor": SKY,
}


def streamlit_options() -> dict[str, str]:
    """Streamlit's options of the look, as its environment variables name them."""
    options = {"STREAMLIT_THEME_BASE_RADIUS": "0.4rem"}
    for name, colours in (("LIGHT", LIGHT), ("DARK", DARK)):
        for option, value in colours.items():
            snake = "".join(f"_{letter}" if letter.isupper() else letter for letter in option).upper()
            options[f"STREAMLIT_THEME_{name}_{snake}"] = value
    return options


#: The page's own style: constant text, no data ever enters it.
STYLE = f"<style>\n{Path(__file__).with_name('theme.css').read_text(encoding='utf-8')}</style>"


def uploader(button: str, most: str) -> str:
    """A style that gives the box for files our words: Streamlit's are English in every language (1.67).

    Where a later Streamlit builds the box otherwise, it keeps its English words.
    """
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
