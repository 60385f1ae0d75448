"""The training footprint of a GPT-style transformer, by a closed formula."""
