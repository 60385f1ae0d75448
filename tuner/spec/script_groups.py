"""The options of scripts, and of the folders of trials."""

from __future__ import annotations

from typing import Literal

from tuner.spec.options import Options, field

StartFolder = Literal["script", "trial"]
KeptFolders = Literal["all", "best", "none"]


class ScriptOptions(Options, title="Scripts and folders of trials"):
    """How scripts and commands run, and what stays of their files."""

    cwd: StartFolder = field(
        "script",
        "Where a script or a command starts: in the current folder (script), or in a folder of its own trial, "
        "trials/ID in the study's folder.",
    )
    keep: KeptFolders = field(
        "all",
        "Which of the trials' folders stay once trials have ended: all, that of the best trial, or none. Those of "
        "failed trials stay.",
    )
