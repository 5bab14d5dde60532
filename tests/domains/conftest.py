"""Shared by the tests of domains."""

from source_fixtures import cache, message  # noqa: F401
