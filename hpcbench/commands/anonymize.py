"""``hpcbench anonymize``: a copy of a run without the names of machines and people."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from hpcbench.measure.garbage import rare_collection
from hpcbench.texts import say
from hpcbench.verbosity import Verbosity


@rare_collection()
def anonymize(
    run: Annotated[Path, typer.Argument(help="The folder of a run.")],
    output: Annotated[Path, typer.Option(
        "-o", "--output", help="The folder to make; there must be nothing yet.")],
    hide: Annotated[Optional[list[str]], typer.Option(
        "--hide", help="A further name to replace, such as a project's; can be repeated.")] = None,
    mapping: Annotated[Optional[Path], typer.Option(
        "--mapping", help="Also write what stands for what to this JSON file; keep it to "
        "yourself.")] = None,
    *, verbosity: Verbosity,
) -> None:
    """Copy a run with other names for hosts, users, paths, addresses, job ids and UUIDs.

    A name has the same replacement in all files. Numbers stay. The copy is read as any other run.

    Examples:
        hpcbench anonymize results/latest -o for-others
        hpcbench anonymize results/latest -o for-others --hide projectx
    """
    from hpcbench.anonymize import anonymize as copy_run
    from hpcbench.anonymize import write_mapping
    from hpcbench.errors import FileError, UsageError
    from hpcbench.units import plural

    if mapping is not None and output.resolve() in mapping.resolve().parents:
        raise UsageError(f"{mapping}: is inside {output}, which is for others; write it elsewhere")
    if mapping is not None and mapping.exists():
        raise FileError(f"{mapping}: is there already; give --mapping another file")
    with verbosity.stage("anonymous copy"):
        found = copy_run(run, output, hide or ())
    if mapping is not None:
        write_mapping(mapping, found.names)
    if verbosity.is_quiet:
        say(str(output))
        return
    replaced = ", ".join(plural(len(names), kind) for kind, names in sorted(found.names.items()))
    say(f"{output}: replaced {replaced or 'nothing'}")
    for line in found.left_out:
        say(f"left out: {line}")
    say("a name that nothing marks as such is still there: search the copy for those that you "
        "know, and give them with --hide NAME")
