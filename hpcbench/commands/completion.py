"""The values that a shell completes behind a flag (docs/commands.md).

Each function takes the beginning of a value, and imports what it needs when it is called: a shell
calls it while somebody types.
"""

from __future__ import annotations

from collections.abc import Iterable


def benchmarks(incomplete: str) -> list[str]:
    """Return the kinds of blocks, and their other names."""
    from hpcbench.config.axes import SCALING
    from hpcbench.kinds.registry import kind_aliases, kinds

    return _beginning([*kinds(), SCALING, *kind_aliases()], incomplete)


def models(incomplete: str) -> list[str]:
    """Return the models."""
    return _beginning(_catalogue("models"), incomplete)


def models_with_vocabulary(incomplete: str) -> list[str]:
    """Return the models that read tokens."""
    found = _catalogue("models")
    return _beginning([name for name, facts in found.items() if "vocab" in facts], incomplete)


def strategies(incomplete: str) -> list[str]:
    """Return the strategies."""
    return _beginning(_catalogue("strategies"), incomplete)


def modes(incomplete: str) -> list[str]:
    """Return the timing modes."""
    from hpcbench.config.axes import MODES

    return _beginning(MODES, incomplete)


def requirable(incomplete: str) -> list[str]:
    """Return the backends, and the devices that may be required."""
    from hpcbench.config.axes import REQUIRABLE

    return _beginning(REQUIRABLE, incomplete)


def retried(incomplete: str) -> list[str]:
    """Return the statuses of cases that can be run again."""
    from hpcbench.config.axes import RETRIED

    return _beginning(RETRIED, incomplete)


def targets(incomplete: str) -> list[str]:
    """Return what a profile can look at."""
    from hpcbench.config.axes import TARGETS

    return _beginning(TARGETS, incomplete)


def tools(incomplete: str) -> list[str]:
    """Return who can record profiled samples."""
    from hpcbench.config.axes import PROFILERS

    return _beginning(PROFILERS, incomplete)


def hardware(incomplete: str) -> list[str]:
    """Return the machines that sweep files are generated for."""
    from hpcbench.config.presets import HARDWARE

    return _beginning(HARDWARE, incomplete)


def image_formats(incomplete: str) -> list[str]:
    """Return the formats of figures."""
    return _beginning(("png", "svg", "pdf"), incomplete)


def plot_styles(incomplete: str) -> list[str]:
    """Return the styles of figures."""
    return _beginning(("report", "paper"), incomplete)


def report_formats(incomplete: str) -> list[str]:
    """Return the formats of reports."""
    return _beginning(("html", "pdf", "md"), incomplete)


def exit_styles(incomplete: str) -> list[str]:
    """Return the styles of the gate's exit codes."""
    return _beginning(("ci", "slurm", "nagios"), incomplete)


def _catalogue(group: str) -> dict[str, dict[str, object]]:
    from hpcbench.kinds.registry import catalogue

    return catalogue().get(group, {})


def _beginning(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]
