"""A user's rows as columns, targets and inputs, in memory or in files, and the folder of a model fitted to them."""
