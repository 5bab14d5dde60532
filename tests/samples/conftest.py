"""Shared by the tests of samples."""

from source_fixtures import cache, message  # noqa: F401
