"""Tables larger than memory: read in slices, shuffled by blocks, fitted and predicted as they pass."""
