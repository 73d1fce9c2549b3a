"""What happened to requests: records, summaries made from them, and Prometheus metrics."""
