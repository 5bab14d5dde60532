"""Sources of raw examples: TFDS, the Hugging Face Hub, local files, generated data."""
