"""Writes what is made from the specification of the options: tuner/__init__.pyi and docs/commands."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import tuner
from scripts import command_docs
from scripts.stub import stub

STUB = Path(tuner.__file__).with_suffix(".pyi")
REMEDY = "run scripts/generate and commit what it writes"


def stub_is_current() -> bool:
    """Whether the stub is what it should be."""
    return STUB.exists() and STUB.read_text() == stub(tuner.MODULES, tuner.__all__)


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes the files, or checks them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, and fail if a file is out of date")
    if not parser.parse_args(arguments).check:
        STUB.write_text(stub(tuner.MODULES, tuner.__all__))
        command_docs.write()
        return 0
    stale = [*([] if stub_is_current() else [STUB.name]), *command_docs.out_of_date()]
    if stale:
        print(f"error: out of date: {', '.join(stale)}: {REMEDY}", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
