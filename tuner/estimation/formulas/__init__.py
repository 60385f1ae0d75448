"""The closed formula of GraphSAGE, which needs no torch and overestimates."""
