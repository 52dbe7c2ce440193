import pytest
from tests.armllm.checkpoint import gguf_files


@pytest.fixture
def llama_file(tmp_path):
    arch, model = gguf_files.reference(tmp_path / "hf", "llama")
    return tmp_path / "model.gguf", arch, model
