"""The engine side of ELDR: expert counts beside the KV cache of a vLLM engine (paper, section on the
signature cache).

    plugin      entry point that vLLM loads in each of its processes
    connector   EldrConnector: capture over any KV connector, NixlConnector by default
    scheduler   what the scheduler's process does: plans each step, builds the answers
    worker      what the model's process does: collects each step's expert choices
    counts      tensor operations on the count cache
    routing     finds the MoE layers and binds vLLM's own capture hook to them
    plan        what travels between the two processes each step
    tracing     a request's decode choices, for calibration
    metrics     Prometheus: eldr_active_experts and what was skipped
    steplog     one JSON line a decoding step, for plots

Importing this package imports neither torch nor vLLM; `connector`, `worker`, `counts`, `routing` and
`metrics` do.
"""
