"""Options for the data of workloads."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator

from tuner.spec.options import Options, Terminal, field

DEFAULT_DATA = ""  # each workload's own default


def _plain(data: object) -> object:
    """The data with paths as texts; None becomes the default, and a program's data stay as they are."""
    if isinstance(data, Mapping) and all(isinstance(source, (str, os.PathLike)) for source in data.values()):
        return {name: os.fspath(source) for name, source in data.items()}
    return "" if data is None else os.fspath(data) if isinstance(data, os.PathLike) else data


def _columns(given: object) -> object:
    """A mapping as the text that a terminal has."""
    return ",".join(f"{key}={column}" for key, column in given.items()) if isinstance(given, Mapping) else given


Data = Annotated[Any, BeforeValidator(_plain)]
Columns = Annotated[str | None, BeforeValidator(_columns)]


class DataOptions(Options, title="Configurations and data"):
    """Which data to train on, and how they are read."""

    data: Data = field(
        DEFAULT_DATA,
        "Where the data are: synthetic, ml-100k (downloaded once), a folder or a file; any text for a workload of "
        "your own. Give it once for all workloads, or for each one.",
        Terminal(
            "[WORKLOAD=]NAME|DIR",
            common=True,
            unset="synthetic",
            in_python="A function gets whatever is given here; all trials share it.",
        ),
    )
    skip_bad: bool = field(False, "Leave out data files that cannot be used, instead of refusing them all.")
    label: str | None = field(
        None, "The column of CAN recordings that says which frames are attacks, or none.", Terminal("COLUMN")
    )
    normal: str | None = field(None, "The value of that column in frames that are no attacks.", Terminal("VALUE"))
    columns: Columns = field(
        None,
        "The columns of a table of ratings, by name or by number from 1, as in user=reader,item=ISBN,rating=stars.",
        Terminal("KEY=COLUMN,…"),
    )
    largest_tree: bool = field(False, "Take the largest tree of an SWC file that has several.")

    def loading(self) -> dict[str, Any]:
        """The options of how data are read that were given, by name."""
        return given_of({name: getattr(self, name) for name in DataOptions.names()})


def given_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """Of a study's options those of how data are read that were given."""
    names = [name for name in DataOptions.names() if name != "data"]
    return {name: value for name in names if (value := options.get(name)) not in (None, DataOptions.default(name))}
