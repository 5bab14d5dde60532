"""One folder per modality, with all that only it needs. Their `interop.py` and `look.py` are found by the lab."""
