"""`python -m t2x`: the command line."""

import sys

from t2x.cli import main

sys.exit(main())
