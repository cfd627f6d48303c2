"""Start the probe in each Python process of a command. ``stallwatch run`` adds this folder to ``PYTHONPATH``.

The module starts the probe (``../imports.py``), removes its folder from ``sys.path``, and loads the
``sitecustomize`` module that this module hides. If the probe cannot start, the program runs as usual.
"""


def _start() -> None:
    import os
    import sys

    here = os.path.dirname(os.path.abspath(__file__))
    # Restore the ``sys.path`` that the program would have without Stallwatch.
    sys.path[:] = [entry for entry in sys.path if not entry or os.path.abspath(entry) != here]
    if "STALLWATCH_RAY" in os.environ:
        _follow_driver(os.environ["STALLWATCH_RAY"].split("\n"))
    if os.environ.get("STALLWATCH_PROBE") == "0" or not os.environ.get("STALLWATCH_PROBE_DIR"):
        return
    from importlib.machinery import ModuleSpec, SourceFileLoader

    folder = os.path.dirname(here)
    init = os.path.join(folder, "__init__.py")
    spec = ModuleSpec("stallwatch_probe", SourceFileLoader("stallwatch_probe", init), origin=init)
    spec.submodule_search_locations = [folder]
    package = type(sys)("stallwatch_probe")
    package.__spec__, package.__path__, package.__file__ = spec, [folder], init
    package.__package__, package.__loader__ = "stallwatch_probe", spec.loader
    sys.modules["stallwatch_probe"] = package
    from stallwatch_probe.imports import watch  # type: ignore[import-not-found]

    watch()
    from stallwatch_probe.plain import register_signal  # type: ignore[import-not-found]

    register_signal(os.environ["STALLWATCH_PROBE_DIR"])


def _follow_driver(facts: "list[str]") -> None:
    """If this process is a Ray worker on the driver's host, apply the settings of the driver's agent.

    Workers that an agent started keep their own settings. `facts` contains the driver's host and process
    namespace, followed by environment variables as ``NAME=value`` (see ``stallwatch.integrations.ray``).
    """
    import os

    here = f"{os.uname().nodename} {os.readlink('/proc/self/ns/pid')}"
    if "STALLWATCH_PROBE_DIR" not in os.environ and facts[0] == here:
        for fact in facts[1:]:
            name, _, value = fact.partition("=")
            os.environ[name] = value


def _make_way() -> None:
    """Load the next ``sitecustomize`` module, if one exists.

    Its errors are raised as they would be without Stallwatch.
    """
    import sys

    this_module = sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name != "sitecustomize":
            raise
        if this_module is not None:
            sys.modules["sitecustomize"] = this_module


try:
    _start()
except Exception:
    pass
_make_way()
