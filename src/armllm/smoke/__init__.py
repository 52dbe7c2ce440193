"""A small trained Llama, a small Mixtral, and the texts that they must generate: ``python -m armllm.smoke``.

The models were trained (tools/train_smoke_model.py) so that rounding to bf16, int8 or int4 leaves every word
in its place, while a wrong kernel garbles the text. So the text tests the kernels that were chosen on
this CPU, the paged cache, the scheduler and torch's matrix products together, in seconds.
"""
