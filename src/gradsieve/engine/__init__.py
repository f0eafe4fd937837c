"""Faster steps on a device with the same results: lowered forms, compiled networks, captured graphs."""
