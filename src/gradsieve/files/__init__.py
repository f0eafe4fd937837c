"""The user's own files: read them, fit a network to them, keep it in a folder without code, and ask it again."""
