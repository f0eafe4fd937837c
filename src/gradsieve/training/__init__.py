"""The training loop, and the folder that it writes. Nothing here depends on a particular method."""
