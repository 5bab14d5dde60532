"""`python -m t2x.cli`: the command line."""

import sys

from t2x.cli import main

sys.exit(main())
