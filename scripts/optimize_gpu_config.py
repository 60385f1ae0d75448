"""The largest batch for a GPU, and into which files it goes: the same as ``tune optimize``, options and all.

Run it with the project's environment: .venv/bin/python scripts/optimize_gpu_config.py --gpu-memory 24 --limit 1
"""

from __future__ import annotations

import sys

from tuner.cli.main import main

if __name__ == "__main__":
    sys.argv[1:1] = ["optimize"]
    main()
