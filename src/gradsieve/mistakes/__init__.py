"""Which given targets are likelier wrong than right, by a network's predictions, and by what kind of mistake."""
