"""What training a GPT-style transformer takes: the same as ``tune estimate``, with its arguments and options.

Run it with the project's environment: .venv/bin/python scripts/estimate_memory.py model.toml
"""

from __future__ import annotations

import sys

from tuner.cli.main import main

if __name__ == "__main__":
    sys.argv[1:1] = ["estimate"]
    main()
