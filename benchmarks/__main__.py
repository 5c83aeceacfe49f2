"""`python -m benchmarks [suite … | all]`, and `--markdown` for the tables of docs/benchmarks.md from saved results."""

import argparse
from pathlib import Path

from . import SUITES
from .run import OUT, markdown, run

parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Compare mixwise with its alternatives.")
parser.add_argument("suites", nargs="*", metavar="suite", help=f"all, or some of: {', '.join(SUITES)}")
parser.add_argument("--out", type=Path, default=OUT, help="the JSON file to write, or to read with --markdown")
parser.add_argument("--markdown", action="store_true", help="print saved results as Markdown")
asked = parser.parse_args()
if asked.markdown:
    print(markdown(asked.out))
else:
    run(asked.suites, asked.out)
