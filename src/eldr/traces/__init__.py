"""Sources of expert choices for the simulator and the figures, all in one form: `ExpertTraces`.

    recorded.gpt_oss_20b()      real decode choices of GPT-OSS-20B          (trace)
    recorded.deepseek_v2_lite() ESFT: teacher-forced DeepSeek-V2-Lite       (trace)
    embedded.embedded()         the embedded model through real vLLM        (engine)
    synthetic.generate(...)     a made-up MoE whose statistics are fitted   (model)

numpy only. The words in brackets are the evidence that a figure made from the source has to name.
"""

from eldr.traces.base import DecodeIds, ExpertTraces

__all__ = ["DecodeIds", "ExpertTraces"]
