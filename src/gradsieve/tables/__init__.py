"""Users' tables, in memory or in files: their columns, targets and inputs; and the folder of a fitted model."""
