"""Runs `t2x referee` without the rest of t2x: `python -m t2x.statistics TABLE`."""

import sys

from t2x.statistics.command import main

sys.exit(main())
