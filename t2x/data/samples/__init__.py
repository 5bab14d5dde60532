"""Small real data sets that work offline."""
