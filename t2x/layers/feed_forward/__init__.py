"""Feed-forward layers, experts and activations."""
