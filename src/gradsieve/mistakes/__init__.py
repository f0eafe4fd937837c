"""Given targets beside those that a network expects: which are likelier wrong than right, and what happened to them."""
