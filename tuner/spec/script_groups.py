"""The options of scripts, and of the folders of trials."""

from __future__ import annotations

from typing import Literal

from tuner.spec.options import Options, Terminal, field

StartFolder = Literal["script", "trial"]
KeptFolders = Literal["all", "best", "none"]


class ScriptOptions(Options, title="Scripts and folders of trials"):
    """How scripts and commands run, and what stays of their files."""

    cwd: StartFolder = field(
        "script",
        "Where a script or a command starts: in the current folder (script), or in the folder of its trial, "
        "trials/ID in the study's folder (trial).",
    )
    metric_pattern: str | None = field(
        None,
        "A regular expression that finds the metric in a line that a script or a command prints, such as "
        "'Accuracy: ([0-9.]+)'. The last match of a line counts. Named groups, such as (?P<val_loss>[0-9.]+), "
        "give several metrics, and epoch. Lines of JSON are read in any case.",
        Terminal("REGEX"),
    )
    metrics_file: str | None = field(
        None,
        "The file of metrics that a script or a command writes in the folder of its trial, with wildcards, "
        "such as 'logs/**/metrics.csv': CSV with a header, lines of JSON, or TensorBoard's event files.",
        Terminal("FILE"),
    )
    config_template: str | None = field(
        None,
        "The YAML, TOML or JSON file to which {config} among a script's arguments adds a trial's values.",
        Terminal("FILE"),
    )
    keep: KeptFolders = field(
        "all",
        "Which folders of trials to keep once trials have ended: all, only that of the best trial (best), or "
        "none. Those of failed trials are kept.",
    )
