"""Colours and Streamlit's settings. The palette is Okabe and Ito's, told apart with any colour vision."""

from __future__ import annotations

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
STYLE = """
<style>
.stMainBlockContainer {padding: 4rem 3rem 2rem 3rem; max-width: 1600px;}
.stMainBlockContainer .stVerticalBlock {gap: 0.6rem;}
/* What a fragment redraws every two seconds must not fade while it does. */
[data-stale="true"], .stElementContainer {opacity: 1 !important; transition: none !important;}
[class*="st-key-verdict-"] {border-left-width: 6px !important; border-left-style: solid !important;}
.st-key-verdict-critical {border-left-color: #D55E00 !important; background: rgba(213, 94, 0, 0.07);}
.st-key-verdict-warning {border-left-color: #E69F00 !important; background: rgba(230, 159, 0, 0.08);}
.st-key-verdict-good {border-left-color: #009E73 !important; background: rgba(0, 158, 115, 0.06);}
.st-key-verdict-quiet {border-left-color: #8A949E !important;}
/* Streamlit's own grey of captions is fainter than WCAG asks for: 4.0 to 1 on white, not 4.5. */
[data-testid="stCaptionContainer"] {
    color: inherit !important; opacity: 1 !important;
}
[data-testid="stCaptionContainer"] :is(p, li) {
    color: color-mix(in srgb, currentColor 80%, transparent) !important;
}
[data-testid="stMetricValue"] {font-size: 1.5rem; font-variant-numeric: tabular-nums;}
[data-testid="stMetricDelta"] {font-size: 0.8rem;}
[data-testid="stMetricDelta"] svg {display: none;}
.stMainBlockContainer h2 {padding: 0; font-size: 1.6rem; overflow-wrap: anywhere;}
.stMainBlockContainer :is(h3, h4) {padding: 0.1rem 0 0.5rem 0;}
.stMainBlockContainer h3 {font-size: 1.35rem;}
.stMainBlockContainer h4 {font-size: 1rem;}
/* A heading for those who hear the page; those who see it have the choice of runs in its place. */
.st-key-heard {
    position: absolute !important; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%);
}
/* Else it takes a gap, and a telephone can be pushed aside. */
[data-testid="stLayoutWrapper"]:has(> .st-key-heard) {position: absolute; width: 1px;}
[class*="st-key-verdict-"] {padding: 0.7rem 1rem !important;}
[class*="st-key-verdict-"] p, [class*="st-key-verdict-"] li {font-size: 0.92rem; margin-bottom: 0.35rem;}
</style>
"""


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
