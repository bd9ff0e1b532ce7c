"""The values that a shell completes behind a flag (docs/commands.md).

Each function takes the beginning of a value, and imports what it needs when it is called: a shell
calls it while somebody types.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module


def benchmarks(incomplete: str) -> list[str]:
    """Return the kinds of blocks, and their other names."""
    from hpcbench.config.axes import SCALING
    from hpcbench.kinds.registry import kind_aliases, kinds

    return _beginning([*kinds(), SCALING, *kind_aliases()], incomplete)


def models(incomplete: str) -> list[str]:
    return _beginning(_catalogue("models"), incomplete)


def models_with_vocabulary(incomplete: str) -> list[str]:
    found = _catalogue("models")
    return _beginning([name for name, facts in found.items() if "vocab" in facts], incomplete)


def strategies(incomplete: str) -> list[str]:
    return _beginning(_catalogue("strategies"), incomplete)


def _catalogue(group: str) -> dict[str, dict[str, object]]:
    from hpcbench.kinds.registry import catalogue

    return catalogue().get(group, {})


def _beginning(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]


def _one_of(*names: str) -> Callable[[str], list[str]]:
    def complete(incomplete: str) -> list[str]:
        return _beginning(names, incomplete)

    return complete


def _named_in(module: str, names: str) -> Callable[[str], list[str]]:
    def complete(incomplete: str) -> list[str]:
        return _beginning(getattr(import_module(module), names), incomplete)

    return complete


_AXES = "hpcbench.config.axes"
modes = _named_in(_AXES, "MODES")
requirable = _named_in(_AXES, "REQUIRABLE")
retried = _named_in(_AXES, "RETRIED")
targets = _named_in(_AXES, "TARGETS")
tools = _named_in(_AXES, "PROFILERS")
hardware = _named_in("hpcbench.config.presets", "HARDWARE")
image_formats = _one_of("png", "svg", "pdf")
plot_styles = _one_of("report", "paper")
report_formats = _one_of("html", "pdf", "md")
exit_styles = _one_of("ci", "slurm", "nagios")
