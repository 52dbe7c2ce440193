"""A small trained Llama and the texts it must recite word for word: ``python -m armllm.smoke``.

The model was trained (tools/train_smoke_model.py) so that rounding to bf16, int8 or int4 leaves every word in
its place, while a wrong kernel garbles the text. So a recitation proves the kernels that were chosen on this
CPU, the paged cache, the scheduler and torch's matrix products together, in seconds.
"""
