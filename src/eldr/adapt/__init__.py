"""A router that learns while it runs: refits its profile, sees drift, tunes its policy, and its gain."""
