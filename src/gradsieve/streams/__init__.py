"""Tables larger than memory: read in slices, shuffled by blocks, and never held as a whole."""
