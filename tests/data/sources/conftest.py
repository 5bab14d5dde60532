"""Shared by the tests of sources."""

from source_fixtures import cache, message  # noqa: F401
