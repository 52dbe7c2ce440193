"""What loading took is logged in one line and kept for the metrics."""

from __future__ import annotations

import logging
import re

from armllm import LLM


def test_time_and_memory_are_reported(make_checkpoint, caplog):
    checkpoint = make_checkpoint()
    with caplog.at_level(logging.INFO, logger="armllm"):
        llm = LLM(checkpoint.folder, dtype="float32")
    report = llm.llm_engine.runner.load_report
    assert report.weight_bytes == sum(tensor.nbytes for tensor in checkpoint.model.state_dict().values())
    assert 0 < report.seconds < 60
    assert report.peak_bytes > report.weight_bytes
    (line,) = [record.getMessage() for record in caplog.records if "loaded" in record.getMessage()]
    assert re.fullmatch(
        r"loaded LlamaForCausalLM: \d+\.\d\d GiB of weights in \d+\.\d s, memory peaked at \d+\.\d\d GiB",
        line,
    )
