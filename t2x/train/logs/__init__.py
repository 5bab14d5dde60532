"""Output of a run: console, files, trackers."""
