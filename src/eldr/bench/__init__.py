"""Load, comparisons of policies on real engines, and the reports made from their saved records."""
