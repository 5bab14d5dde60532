"""Runs the command line: `python -m t2x`."""

import sys

from t2x.cli import main

sys.exit(main())
