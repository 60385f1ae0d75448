"""Completion by a shell: the script that switches it on, and what options can be completed with."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem, get_completion_class

from tuner.errors import InputError

SHELLS = ("bash", "zsh", "fish")
NAMES = ("tune", "tuner")  # Ray has a command of the first name, too
VARIABLE = "_TUNE_COMPLETE"  # by which such a script asks for completions


def completion(shell: str) -> str:
    """The script that lets a shell complete commands, options, workloads, modes and studies' folders.

    Args:
        shell: "bash" (4.4 or newer), "zsh" or "fish".

    Returns:
        What the shell has to evaluate, for the commands ``tune`` and ``tuner``.
    """
    if shell not in SHELLS:
        raise InputError(f"unknown shell {shell!r}: choose one of {', '.join(SHELLS)}")
    made = get_completion_class(shell)
    assert made is not None
    each = [made(click.Command(name), {}, name, VARIABLE) for name in NAMES]  # a script says nothing of the command
    return "\n".join(one.source_template % one.source_vars() for one in each)


def complete_shells(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Shells that begin with what was typed."""
    return [shell for shell in SHELLS if shell.startswith(incomplete)]


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
        *(CompletionItem(each) for each in studies if each.startswith(incomplete)),
    ]
