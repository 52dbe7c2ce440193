"""/score, /rerank, /pooling and /classify."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError
from typing_extensions import TypedDict

from armllm.server.protocol.base import FIRST_ERROR, OF_POOLING, PooledRequest, Strict, Strings, TextOrIds
from armllm.server.protocol.tokens import EmbeddingRequest, EmbeddingUsage, Vector

PAIRS = (("text_1", "text_2"), ("queries", "documents"), ("queries", "items"), ("data_1", "data_2"))
UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    **OF_POOLING,
    "use_activation": (True,),
    "activation": (True,),
    "softmax": (True,),
    "instruction": (),
    "max_tokens_per_query": (0,),
    "max_tokens_per_doc": (0,),
}


class ScoreRequest(PooledRequest):
    """Texts to compare: one with each of several, or several one by one. The fields have four names."""

    unsupported: ClassVar[dict[str, tuple[Any, ...]]] = UNSUPPORTED

    text_1: TextOrIds | None = None
    text_2: TextOrIds | None = None
    queries: TextOrIds | None = None
    documents: TextOrIds | None = None
    items: TextOrIds | None = None
    data_1: TextOrIds | None = None
    data_2: TextOrIds | None = None

    @model_validator(mode="after")
    def _one_pair(self) -> ScoreRequest:
        names = {name for pair in PAIRS for name in pair if getattr(self, name) is not None}
        if not any(names == set(pair) for pair in PAIRS):
            pairs = ", ".join(" and ".join(pair) for pair in PAIRS)
            raise PydanticCustomError(
                "one_of", "a request needs one of these pairs: {pairs}", {"pairs": pairs}
            )
        return self

    def names_for_errors(self) -> dict[str, str]:
        """Of the field that has the texts."""
        return super().names_for_errors() | {"prompt": self.pair()[1]}

    def pair(self) -> tuple[str, str]:
        """The names of the two fields."""
        return next(pair for pair in PAIRS if all(getattr(self, name) is not None for name in pair))


class Score(TypedDict):
    """The score of one pair: the cosine of the embeddings, from -1 to 1, or a cross-encoder's."""

    index: int
    object: Literal["score"]
    score: float


class Scores(TypedDict):
    """The scores, in the order of the pairs."""

    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[Score]
    usage: EmbeddingUsage


class RerankText(Strict):
    """A document as an object."""

    text: str


class RerankRequest(PooledRequest):
    """Documents to order by how near they are to a query.

    ``top_n``, which routers call ``top_k``: how many to return; 0 is all.
    """

    unsupported: ClassVar[dict[str, tuple[Any, ...]]] = UNSUPPORTED

    query: str
    documents: Strings | Annotated[list[RerankText], FIRST_ERROR] = Field(min_length=1)
    top_n: int | None = Field(None, ge=0)
    top_k: int | None = Field(None, ge=0)
    rid: str | None = None  # a router's name of the request
    return_documents: bool | None = None

    def names_for_errors(self) -> dict[str, str]:
        """What is a prompt elsewhere is a document here."""
        return super().names_for_errors() | {"prompt": "documents"}


class RerankDocument(TypedDict):
    """A document of an answer."""

    text: str


class RerankResult(TypedDict):
    """A document, its place in the request and its score."""

    index: int
    document: RerankDocument | None
    relevance_score: float


class Reranked(TypedDict):
    """The documents, the nearest first."""

    id: str
    model: str
    usage: EmbeddingUsage
    results: list[RerankResult]


class PoolingRequest(EmbeddingRequest):
    """Texts or token ids whose states are pooled."""

    unsupported: ClassVar[dict[str, tuple[Any, ...]]] = OF_POOLING

    task: str | None = None
    use_activation: bool | None = None


class Pooled(TypedDict):
    """One vector, or one of each token."""

    index: int
    object: Literal["pooling"]
    data: Vector | str


class Poolings(TypedDict):
    """The vectors, in the order of the inputs."""

    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[Pooled]
    usage: EmbeddingUsage


class ClassifyRequest(PooledRequest):
    """Texts to classify; ``use_activation`` false asks for the scores before they become probabilities."""

    unsupported: ClassVar[dict[str, tuple[Any, ...]]] = {
        name: harmless for name, harmless in UNSUPPORTED.items() if name != "use_activation"
    }

    use_activation: bool | None = None

    input: TextOrIds
    add_special_tokens: bool | None = None

    def names_for_errors(self) -> dict[str, str]:
        """What is a prompt elsewhere is an input here."""
        return super().names_for_errors() | {"prompt": "input"}


class Class(TypedDict):
    """The likeliest class of one text, and the probability of each."""

    index: int
    label: str
    probs: list[float]
    num_classes: int


class Classified(TypedDict):
    """The classes, in the order of the inputs."""

    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[Class]
    usage: EmbeddingUsage
