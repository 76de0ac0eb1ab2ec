"""``watchword bench stall`` from a checkout: do chats stutter while cameras or long prompts use the model?

    python -m benchmarks.stall --base-url http://127.0.0.1:8000/v1 --load cameras --rate 0.1 --out stall.json

The code is ``pipeline/bench``; docs/tuning.md says how to read the picture. A list of measurements: stall_table.py.
"""

from __future__ import annotations

import sys

from pipeline.cli.app import run

if __name__ == "__main__":
    sys.argv[1:1] = ["bench", "stall"]
    run()
