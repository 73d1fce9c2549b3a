"""Where workers come from while the router runs: a file, DNS, Kubernetes."""
