"""What a shell can complete options with. Click's own script asks for it: ``_TUNER_COMPLETE=bash_source tuner``."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem


def complete_workloads(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Built-in workloads that begin with what was typed."""
    from tuner.workloads.built_in import BUILT_IN

    return [name for name in BUILT_IN if name.startswith(incomplete)]


def complete_modes(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Modes of the workloads that were named before, if they begin with what was typed."""
    from tuner.search.configurations import modes
    from tuner.workloads.built_in import DEFAULT_WORKLOAD

    workloads = ctx.params.get("workload") or (DEFAULT_WORKLOAD,)
    found = {mode for name in workloads for mode in modes(name)}
    return sorted(mode for mode in found if mode.startswith(incomplete))


def complete_studies(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    """Studies' folders under ``results/``, newest first, or any other folder."""
    from tuner.records.files import STUDY
    from tuner.records.read_studies import RESULTS_FOLDER

    found = sorted(RESULTS_FOLDER.glob(f"*/{STUDY}"), reverse=True)
    studies = [str(path.parent) for path in found]
    # First, as bash's script drops what stands before a kind of files.
    return [
        CompletionItem(incomplete, "dir"),
        *(CompletionItem(study) for study in studies if study.startswith(incomplete)),
    ]
