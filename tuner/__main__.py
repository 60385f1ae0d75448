"""``python -m tuner``: the same as the ``tune`` and ``tuner`` commands."""

from tuner.cli import main

main()
