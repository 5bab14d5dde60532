"""Shared by the tests of sources."""

import sys
from pathlib import Path

from source_fixtures import cache, message  # noqa: F401

sys.path.append(str(Path(__file__).parent))
