"""The loop, and what it leaves on disk. Nothing here knows a method by name."""
