"""``python -m tuner``: the same as the ``tune`` and ``tuner`` commands."""

from tuner.cli.main import main

main()
