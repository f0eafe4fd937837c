"""The user's own files, in memory or streamed: fit a network to them, and ask it again."""
