"""A GPT-style transformer's training footprint, by a closed formula."""
