"""Model architectures: the table of families, each in one file, and how a model is built."""

from __future__ import annotations

import dataclasses
import difflib
import importlib
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from armllm.checkpoint.config import ConfigReader
from armllm.checkpoint.weights import CheckingWeights
from armllm.layers.stages import WHOLE, building_stage, current_stage
from armllm.quant.formats import read_format

if TYPE_CHECKING:
    from pathlib import Path

    import torch
    from torch import Tensor

    from armllm.checkpoint.config import ModelConfig
    from armllm.checkpoint.tensors import Tensors
    from armllm.checkpoint.weights import Inventory, WeightFormat, Weights
    from armllm.layers.attention import Attention, AttentionMetadata
    from armllm.layers.recurrent import RecurrentLayer
    from armllm.layers.rotary import RotaryEmbedding
    from armllm.models.encoder import EncoderConfig


class Family(NamedTuple):
    """A row of `FAMILIES`.

    module: here; its class bears the architecture's name. model_type: in config.json, for one that names no
    architecture.
    """

    module: str
    model_type: str


# by the architecture in config.json
FAMILIES = {
    "AfmoeForCausalLM": Family("afmoe", "afmoe"),
    "ApertusForCausalLM": Family("apertus", "apertus"),
    "ArceeForCausalLM": Family("arcee", "arcee"),
    "Cohere2MoeForCausalLM": Family("cohere2_moe", "cohere2_moe"),
    "Cohere2ForCausalLM": Family("cohere", "cohere2"),
    "CohereForCausalLM": Family("cohere", "cohere"),
    "CwmForCausalLM": Family("cwm", "cwm"),
    "DeepseekV2ForCausalLM": Family("deepseek", "deepseek_v2"),
    "DeepseekV32ForCausalLM": Family("deepseek_v32", "deepseek_v32"),
    "DeepseekV3ForCausalLM": Family("deepseek", "deepseek_v3"),
    "Dots1ForCausalLM": Family("dots1", "dots1"),
    "Ernie4_5ForCausalLM": Family("ernie4_5", "ernie4_5"),
    "Ernie4_5_MoeForCausalLM": Family("ernie4_5_moe", "ernie4_5_moe"),
    "Exaone4ForCausalLM": Family("exaone4", "exaone4"),
    "ExaoneMoeForCausalLM": Family("exaone_moe", "exaone_moe"),
    "ExaoneForCausalLM": Family("exaone", "exaone"),
    "FalconH1ForCausalLM": Family("falcon_h1", "falcon_h1"),
    "FalconForCausalLM": Family("falcon", "falcon"),
    "FlexOlmoForCausalLM": Family("flex_olmo", "flex_olmo"),
    "GPT2LMHeadModel": Family("gpt2", "gpt2"),
    "GPTJForCausalLM": Family("gptj", "gptj"),
    "GPTNeoXForCausalLM": Family("gpt_neox", "gpt_neox"),
    "Gemma2ForCausalLM": Family("gemma2", "gemma2"),
    "Gemma3ForCausalLM": Family("gemma3", "gemma3_text"),
    "Gemma3ForConditionalGeneration": Family("gemma3", "gemma3"),
    "Gemma3nForCausalLM": Family("gemma3n", "gemma3n_text"),
    "Gemma3nForConditionalGeneration": Family("gemma3n", "gemma3n"),
    "Gemma4ForCausalLM": Family("gemma4", "gemma4_text"),
    "Gemma4ForConditionalGeneration": Family("gemma4", "gemma4"),
    "Gemma4UnifiedForCausalLM": Family("gemma4", "gemma4_unified_text"),
    "Gemma4UnifiedForConditionalGeneration": Family("gemma4", "gemma4_unified"),
    "GemmaForCausalLM": Family("gemma", "gemma"),
    "Glm4ForCausalLM": Family("glm", "glm4"),
    "Glm4MoeForCausalLM": Family("glm4_moe", "glm4_moe"),
    "Glm4MoeLiteForCausalLM": Family("glm4_moe_lite", "glm4_moe_lite"),
    "GlmForCausalLM": Family("glm", "glm"),
    "GlmMoeDsaForCausalLM": Family("deepseek_v32", "glm_moe_dsa"),
    "GptOssForCausalLM": Family("gpt_oss", "gpt_oss"),
    "GraniteForCausalLM": Family("granite", "granite"),
    "GraniteMoeForCausalLM": Family("granite_moe", "granitemoe"),
    "GraniteMoeHybridForCausalLM": Family("granite_hybrid", "granitemoehybrid"),
    "GraniteMoeSWAForCausalLM": Family("granite_swa", "granitemoe_swa"),
    "GraniteMoeSharedForCausalLM": Family("granite_moe", "granitemoeshared"),
    "GraniteSWAForCausalLM": Family("granite_swa", "granite_swa"),
    "HeliumForCausalLM": Family("helium", "helium"),
    "HunYuanDenseV1ForCausalLM": Family("hunyuan", "hunyuan_v1_dense"),
    "HunYuanMoEV1ForCausalLM": Family("hunyuan", "hunyuan_v1_moe"),
    "HyperCLOVAXForCausalLM": Family("hyperclovax", "hyperclovax"),
    "InternLM2ForCausalLM": Family("internlm2", "internlm2"),
    "InternLM3ForCausalLM": Family("internlm3", "internlm3"),
    "Jais2ForCausalLM": Family("jais2", "jais2"),
    "Lfm2ForCausalLM": Family("lfm2", "lfm2"),
    "Lfm2MoeForCausalLM": Family("lfm2_moe", "lfm2_moe"),
    "Lfm3ForCausalLM": Family("lfm3", "lfm3"),
    "Llama4ForCausalLM": Family("llama4", "llama4_text"),
    "Llama4ForConditionalGeneration": Family("llama4", "llama4"),
    "LlamaForCausalLM": Family("llama", "llama"),
    "MiniCPM3ForCausalLM": Family("minicpm", "minicpm3"),
    "MiniCPMForCausalLM": Family("minicpm", "minicpm"),
    "MiniMaxM2ForCausalLM": Family("minimax_m2", "minimax_m2"),
    "Ministral3ForCausalLM": Family("ministral3", "ministral3"),
    "MinistralForCausalLM": Family("mistral", "ministral"),
    "Mistral3ForConditionalGeneration": Family("ministral3", "mistral3"),
    "MistralForCausalLM": Family("mistral", "mistral"),
    "MixtralForCausalLM": Family("mixtral", "mixtral"),
    "NanoChatForCausalLM": Family("nanochat", "nanochat"),
    "NemotronForCausalLM": Family("nemotron", "nemotron"),
    "NemotronHForCausalLM": Family("nemotron_h", "nemotron_h"),
    "OPTForCausalLM": Family("opt", "opt"),
    "Olmo2ForCausalLM": Family("olmo2", "olmo2"),
    "Olmo3ForCausalLM": Family("olmo3", "olmo3"),
    "OlmoForCausalLM": Family("olmo", "olmo"),
    "OlmoeForCausalLM": Family("olmoe", "olmoe"),
    "Phi3ForCausalLM": Family("phi3", "phi3"),
    "PhiForCausalLM": Family("phi", "phi"),
    "PhimoeForCausalLM": Family("phimoe", "phimoe"),
    "Qwen2ForCausalLM": Family("qwen2", "qwen2"),
    "Qwen2MoeForCausalLM": Family("qwen2_moe", "qwen2_moe"),
    "Qwen2_5_VLForConditionalGeneration": Family("qwen2_5_vl", "qwen2_5_vl"),
    "Qwen3ForCausalLM": Family("qwen3", "qwen3"),
    "Qwen3MoeForCausalLM": Family("qwen3_moe", "qwen3_moe"),
    "Qwen3NextForCausalLM": Family("qwen3_next", "qwen3_next"),
    "Qwen3_5ForCausalLM": Family("qwen3_5", "qwen3_5_text"),
    "Qwen3_5ForConditionalGeneration": Family("qwen3_5", "qwen3_5"),
    "Qwen3_5MoeForCausalLM": Family("qwen3_5", "qwen3_5_moe_text"),
    "Qwen3_5MoeForConditionalGeneration": Family("qwen3_5", "qwen3_5_moe"),
    "SeedOssForCausalLM": Family("seed_oss", "seed_oss"),
    "SmolLM3ForCausalLM": Family("smollm3", "smollm3"),
    "SolarOpenForCausalLM": Family("solar_open", "solar_open"),
    "StableLmForCausalLM": Family("stablelm", "stablelm"),
    "Starcoder2ForCausalLM": Family("starcoder2", "starcoder2"),
    "VaultGemmaForCausalLM": Family("vaultgemma", "vaultgemma"),
    "YoutuForCausalLM": Family("youtu", "youtu"),
}

# encoders, which make embeddings or classes
_ENCODERS = {
    "bert": ("Bert", "bert"),
    "camembert": ("Camembert", "bert"),
    "distilbert": ("DistilBert", "distilbert"),
    "gte": ("Gte", "gte"),
    "modernbert": ("ModernBert", "modernbert"),
    "new": ("New", "gte"),
    "nomic_bert": ("NomicBert", "nomic_bert"),
    "roberta": ("Roberta", "bert"),
    "xlm-roberta": ("XLMRoberta", "bert"),
}
ENCODERS = {
    f"{name}{form}": Family(module, model_type)
    for model_type, (name, module) in _ENCODERS.items()
    for form in ("ForMaskedLM", "ForSequenceClassification", "Model")
}
# decoders with classes
CLASSIFIERS = {
    f"{name}ForSequenceClassification": Family("classifiers", "")
    for name in ("Gemma", "Gemma2", "Gemma3Text", "Llama", "Mistral", "Qwen2", "Qwen3")
}
# decoders without a head, for embeddings
EMBEDDERS = {
    f"{name}Model": Family("embedders", "")
    for name in ("Gemma2", "Gemma3Text", "Llama", "Mistral", "Qwen2", "Qwen3")
}
# that see tokens behind each one, and so generate no text, whatever config.json calls them
BOTH_WAYS = {f"{name.removesuffix('Model').removesuffix('Text')}ForCausalLM": name for name in EMBEDDERS}
# decoders' layers whose tokens always see both ways
EURO_BERT = {
    "EuroBertForMaskedLM": Family("embedders", ""),
    "EuroBertModel": Family("embedders", "eurobert"),
}
BGE_M3 = {"BgeM3EmbeddingModel": Family("bert", "")}  # which calls itself XLMRobertaModel
ARCHITECTURES = FAMILIES | ENCODERS | CLASSIFIERS | EMBEDDERS | EURO_BERT | BGE_M3
# which checkpoints bear, and transformers does not
OLDER_NAMES = {
    "ExaoneMoEForCausalLM": "ExaoneMoeForCausalLM",
    "PhiMoEForCausalLM": "PhimoeForCausalLM",
}


class Model(Protocol):
    """What the model runner needs of a model."""

    config: ModelConfig
    attention_layers: list[Attention]
    recurrent_layers: list[RecurrentLayer]
    rotaries: list[RotaryEmbedding]

    def __init__(self, config: ModelConfig, weights: Weights, *, max_positions: int) -> None:
        """Take the weights."""

    @staticmethod
    def read_config(reader: ConfigReader) -> ModelConfig:
        """The family's configuration, or CheckpointError naming what it does not support."""

    @staticmethod
    def ignored_tensors(config: ModelConfig) -> tuple[str, ...]:
        """Patterns of tensor names that may be in a checkpoint and carry nothing."""

    def places(self, positions: Tensor, total_lens: Tensor) -> Tensor:
        """Rows int64 ``[T]`` of the tables of positions, which this makes long enough for them.

        ``total_lens`` int64 ``[T]``: all tokens of each one's sequence, those of later steps included.
        """

    def __call__(
        self, token_ids: Tensor, places: Tensor, metadata: AttentionMetadata, rows: Tensor | None
    ) -> Tensor:
        """Hidden states ``[R, hidden_size]`` of R ``rows`` among T tokens, or of all if there are no rows.

        Caches keys and values of all.
        """

    def logits(self, hidden: Tensor) -> Tensor:
        """``hidden[R, hidden_size]`` to fp32 ``[R, vocab_size]``."""


class StagedModel(Model, Protocol):
    """A model of which a process may have some layers (`layers.stages`); all decoders are."""

    def advance(
        self,
        states: tuple[Tensor, ...],
        token_ids: Tensor,
        places: Tensor,
        metadata: AttentionMetadata,
        rows: Tensor | None,
    ) -> tuple[Tensor, ...]:
        """What the next stage gets as ``states``, from what the one before has made.

        The first stage gets none. The last one returns the hidden states that `__call__` of the whole does.
        """


class Seeing(StagedModel, Protocol):
    """A model whose configuration has ``pictures``."""

    def embed(self, token_ids: Tensor) -> Tensor:
        """What the first layer sees of text."""

    def embed_picture(self, pixels: Tensor, height: int, width: int) -> Tensor:
        """What it sees of a picture of ``height * width`` patches: ``pixels`` as its processor has them."""


class Classifier(Model, Protocol):
    """A model whose configuration has ``classes``."""

    def classify(self, pooled: Tensor) -> Tensor:
        """``pooled[R, hidden_size]`` to scores fp32 ``[R, num_labels]``, before any activation."""


class TokenModel(Model, Protocol):
    """A model with a head for the weight of a token in a text, and one for a vector of each (BGE-M3)."""

    config: EncoderConfig

    def token_weights(self, states: Tensor, *, positive: bool) -> Tensor:
        """``states[R, hidden_size]`` to weights fp32 ``[R]``; ``positive``: 0 for those below."""

    def token_vectors(self, states: Tensor) -> Tensor:
        """The same to vectors fp32 ``[R, hidden_size]``, of any length."""


def check_model(
    architecture: type[Model],
    config: ModelConfig,
    checkpoint: Tensors,
    dtype: torch.dtype,
    quantization: WeightFormat | None,
    *,
    max_positions: int = 1,
) -> tuple[Model, Inventory]:
    """Build the current stage without data, which can't compute, and tell what it takes of the checkpoint.

    CheckpointError says what is missing or wrong.
    """
    with building_stage(WHOLE):
        weights = CheckingWeights(checkpoint, dtype, quantization)
        model = architecture(config, weights, max_positions=max_positions)
        inventory = weights.finish(architecture.ignored_tensors(config))
    if current_stage().size > 1:  # all of it is there: now for what this stage takes
        weights = CheckingWeights(checkpoint, dtype, quantization)
        model = architecture(config, weights, max_positions=max_positions)
        inventory = weights.inventory
    return model, inventory


def read_model_config(
    folder: Path, overrides: dict[str, Any] | None = None
) -> tuple[type[Model], ModelConfig]:
    """The class and the configuration of a checkpoint folder, or CheckpointError.

    ``overrides``: values above those of config.json.
    """
    reader = ConfigReader.open(folder, overrides)
    architecture = model_class(reader)
    config = architecture.read_config(reader)
    reader.refuse_unknown()
    return architecture, dataclasses.replace(config, quantization=read_format(reader))


def model_class(reader: ConfigReader) -> type[Model]:
    """The class for a config.json, or CheckpointError naming the architecture that is not here."""
    named = reader.get("architectures", None)
    model_type = reader.get("model_type", None)
    if named is None and model_type is None:
        raise reader.error("neither architectures nor model_type is given")
    if named is not None and (not isinstance(named, list) or not named):
        raise reader.error(f"architectures must be a list of names, not {named!r}")
    typed = FAMILIES | ENCODERS | EURO_BERT
    by_type = {family.model_type: architecture for architecture, family in typed.items()}
    architecture = named[0] if named else by_type.get(str(model_type), model_type)
    if isinstance(architecture, str):
        architecture = OLDER_NAMES.get(architecture, architecture)
    if reader.values.get("is_causal") is False or reader.values.get("use_bidirectional_attention") is True:
        architecture = BOTH_WAYS.get(str(architecture), architecture)
    if not isinstance(architecture, str) or architecture not in ARCHITECTURES:
        similar = difflib.get_close_matches(str(architecture)[:100], ARCHITECTURES, 3)
        hint = (
            f"similar names are {', '.join(similar)}" if similar else "docs/reference/families.md lists all"
        )
        raise reader.error(f"architecture {architecture!r:.100} is not supported; {hint}")
    module = importlib.import_module(f"armllm.models.{ARCHITECTURES[architecture].module}")
    found: type[Model] = getattr(module, architecture)
    return found
