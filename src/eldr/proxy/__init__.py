"""The HTTP router between clients, prefill workers and decode workers."""
