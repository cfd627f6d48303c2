"""Define the application that ``streamlit run`` serves: the pages' script, uploads, redirects, and the login.

Streamlit finds the application by its name and class in this file (streamlit 1.58, app_discovery.py). The
login's secrets are passed in memory, so they do not appear in a file or on a command line.
"""

from pathlib import Path

from starlette.middleware import Middleware
from streamlit import runtime
from streamlit.starlette import App

from stallwatch_dashboard import readiness
from stallwatch_dashboard.access import kept_cookie_secret, secrets_of
from stallwatch_dashboard.data.source import shared
from stallwatch_dashboard.middleware import OwnHosts, PlotlyCache, Redirects
from stallwatch_dashboard.uploads.gate import LEDGER, UploadGate


def _alive(session: str) -> bool:
    return runtime.exists() and runtime.get_instance().is_active_session(session)


_settings = shared().settings
_secrets = (
    {"auth": secrets_of(_settings.login, _settings.address, kept_cookie_secret(_settings.home))}
    if _settings.login.on
    else None
)
app = App(
    Path(__file__).with_name("streamlit_app.py"),
    secrets=_secrets,
    middleware=[
        Middleware(OwnHosts, configured=_settings.hosts, url=_settings.url),
        Middleware(UploadGate, ledger=LEDGER, most=_settings.max_uploads_mb * 1024 * 1024, alive=_alive),
        Middleware(Redirects),
        Middleware(PlotlyCache),
    ],
)
readiness.begin()
