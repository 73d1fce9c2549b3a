"""The overhead of ELDR: time a request, memory, and the fit."""

from eldr.paper.figure import Claim, Evidence, Figure, Finding, Outputs, Result, Table, register
from eldr.paper.measure.benchmarks import decision_us, digest, fit_s, kept
from eldr.paper.pieces import Piece

WORKERS = 16
REQUESTS = 1000
PROMPT = "512"
"""The prompt length of the capture benchmark that is taken."""

MODEL = "Qwen3-30B-A3B"
HBM_GB, USED, WEIGHTS_GB = 192, 0.9, 61
"""An MI300X, vLLM's usual share of it, and the model's bf16 weights: what is left holds the KV cache."""


def _pieces() -> dict[str, Piece]:
    files = {name: Piece(kept, {"name": f"{name}.json", "digest": digest(f"{name}.json")}) for name in FILES}
    return {
        **files,
        "decision": Piece(decision_us, {"workers": WORKERS}, "timed"),
        "fit": Piece(fit_s, {"requests": REQUESTS, "workers": WORKERS}, "timed"),
    }


FILES = ("capture", "router_overhead")


def _result(outputs: Outputs) -> Result:
    capture, router = outputs["capture"], outputs["router_overhead"]
    decision_ms = outputs["decision"]["whole_us"] / 1e3
    capture_ms = capture["prefill"][PROMPT]["difference_ms"]["p50"]
    whole_ms, ttft_ms = router["added_ms"]["router"]["p50"], router["ttft_ms"]["capture"]["p50"]
    share = capture["memory"][MODEL]["share"] * (USED - WEIGHTS_GB / HBM_GB)
    findings = [
        _finding(
            "request",
            f"decision among {WORKERS} workers, and capture of {PROMPT} prompt tokens",
            decision_ms + capture_ms,
            "medians, on a CPU",
        ),
        _finding(
            "share",
            "the whole router, of the TTFT by hand",
            100 * whole_ms / ttft_ms,
            f"{router['rounds']} rounds, prompts of 64 to 256 tokens",
        ),
        _finding(
            "memory", f"{MODEL}, a byte a KV block, layer and expert", 100 * share, "arithmetic", "model"
        ),
        _finding(
            "fit",
            f"{REQUESTS} requests, 48 x 128, K = {WORKERS}",
            outputs["fit"]["seconds"],
            "CPU time on made-up counts, median of 3",
            "model",
        ),
    ]
    rows = [
        ["decision: payload to counts to signature to worker", f"{decision_ms:.2f} ms"],
        [f"capture, prefill of {PROMPT} tokens, with less without", f"{capture_ms:.2f} ms"],
        ["the whole router, added to the TTFT (HTTP and hand-off included)", f"{whole_ms:.2f} ms"],
        ["TTFT by hand, the same engines", f"{ttft_ms:.1f} ms"],
        [f"counts a KV block, of the KV bytes ({MODEL})", f"{capture['memory'][MODEL]['share']:.2%}"],
    ]
    return Result(findings, dict(outputs), [Table("Parts", ["what", "median"], rows)])


def _finding(claim: str, source: str, mean: float, over: str, evidence: Evidence = "engine") -> Finding:
    return Finding(claim=claim, source=source, evidence=evidence, role="number", mean=mean, over=over)


def _why(result: Result) -> str:
    by_claim = {finding.claim: finding.mean for finding in result.findings}
    return (
        "All times are of a two-core machine without a GPU, where capture shares the cores with the model; "
        "the paper's are of its own servers. The router as a whole, with HTTP and the hand-off, is "
        f"{by_claim['share']:.1f} % of a TTFT that is short because the embedded model is tiny; the paper "
        "counts what ELDR adds to a router that is there anyway. Memory: what is kept for a block is fixed "
        f"by the model; {HBM_GB} GB, {USED:.0%} used and {WEIGHTS_GB} GB of weights are assumed."
    )


register(
    Figure(
        id="overhead",
        title="Time, memory and the fit",
        says="0.86 ms a request, 1.2 % of a median TTFT of 69 ms; the signature cache takes 0.24 % of HBM; a "
        "fit takes less than 10 s on a CPU.",
        claims={
            "request": Claim("added to a request", 0, 0.86, "ms", sign=0, digits=2),
            "share": Claim("added to the TTFT", 0, 1.2, "% of TTFT", sign=0),
            "memory": Claim("counts beside the KV cache", 0, 0.24, "% of HBM", sign=0, digits=2),
            "fit": Claim("fit, layers chosen", 0, 10, "s", sign=0),
        },
        pieces=_pieces,
        result=_result,
        draw=None,
        why=_why,
        change=lambda _: (
            "`make bench-router-overhead` and `make bench-capture` on a machine whose engines run on GPUs: "
            "the capture is then a few small kernels, and the TTFT is that of a large model."
        ),
    )
)
