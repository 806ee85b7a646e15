"""Request and response bodies. `Service` checks the values that depend on its limits."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, JsonValue, WithJsonSchema, field_validator

from retrievalkit.contracts.commands import DocumentOptions, HybridOptions, options

Count = Annotated[Any, WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}]})]
"""An integer that `hit_count` checks, with the messages of the Python API."""

WrittenCount = Annotated[
    Count, BeforeValidator(lambda value: int(value) if re.fullmatch(r"-?\d{1,9}", str(value), re.ASCII) else value)
]
"""An integer, or its digits as a string."""

_Scalar = str | int | float | bool
FILTER = (
    "Only texts whose fields, id, title or document pass, such as: "
    "year >= 2020 and (source = faq or not tags in (draft, 'to do'))."
)

_FILLED: dict[str, JsonValue] = {"minLength": 1, "pattern": r"\S"}
"""Schema of a text that must not be blank; the Python API checks it."""


class Form(BaseModel):
    """A request body. Unknown fields and numbers in quotes are errors."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @field_validator("*", mode="before")
    @classmethod
    def _whole(cls, value: Any) -> Any:
        """Convert floats such as 10.0 to integers."""
        return int(value) if isinstance(value, float) and value.is_integer() else value


# mypy refuses a frozen dataclass as the base of a model.
_Hybrid: Any = HybridOptions
_Documents: Any = DocumentOptions


class IndexesForm(Form, _Hybrid):  # type: ignore[misc]
    """The indexes to search, with the options of `rkit search`."""

    query: str = Field(description="The text to search for.", json_schema_extra=_FILLED)
    indexes: list[str] | None = Field(
        None, description="Names of indexes; by default all.", json_schema_extra={"minItems": 1, "uniqueItems": True}
    )
    # No file of weights: clients must not read files of the service's machine.
    weights: list[float] | None = Field(None, description="A number for each index, in their order.")

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        """Copy the descriptions of the options from their declarations."""
        for name, option in (options(HybridOptions) | options(DocumentOptions)).items():
            if name in cls.model_fields:
                cls.model_fields[name].description = cls.model_fields[name].description or option.description
        cls.model_rebuild(force=True)


class SearchForm(IndexesForm, _Documents):  # type: ignore[misc]
    """A search request."""

    k: Count = Field(10, description="Number of hits.")
    rerank: int | None = Field(
        None,
        description="Number of hits to re-rank; 0 = none. By default as the service was started.",
        json_schema_extra={"minimum": 0},
    )
    filter: str | None = Field(None, description=FILTER)
    explain: bool = Field(False, description="Explain the scores; a vector index encodes the hits' texts to do so.")
    texts: bool = Field(False, description="Return the full texts of hits, too.")


class SearchLine(SearchForm):
    """A search request with parameters in the URL, where numbers are strings."""

    model_config = ConfigDict(strict=False)

    k: WrittenCount = Field(10, description="Number of hits.")


class DocumentLine(Form):
    """A document request with parameters in the URL."""

    id: str = Field(description="The id of a document, or of a passage.")
    query: str = Field("", description="Words to highlight.")


class FileLine(Form):
    """A request for a file with parameters in the URL."""

    id: str = Field(description="The id of a document.")


class ExplainForm(IndexesForm):
    """A request to explain documents."""

    ids: list[str] = Field(
        description="Ids of documents or passages, even if a search does not return them.",
        json_schema_extra={"minItems": 1},
    )


class EmbeddingForm(Form):
    """OpenAI's request for embeddings."""

    input: Any = Field(
        description="A text or a list of texts.",
        json_schema_extra={
            "anyOf": [
                {"type": "string", **_FILLED},
                {"type": "array", "items": {"type": "string", **_FILLED}, "minItems": 1},
            ]
        },
    )
    model: str | None = Field(None, description="A model of /v1/models; optional if there is only one.")
    input_type: Literal["query", "document"] = Field(
        "document", description="Kind of text: models may encode queries in another way."
    )
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = Field(None, ge=1, description="Number of dimensions to keep; by default all.")
    user: str | None = Field(None, description="Ignored.")


class TitledText(Form):
    """A text with an optional title."""

    text: str
    title: str = ""


class RerankForm(Form):
    """A request to re-rank documents."""

    query: str = Field(json_schema_extra=_FILLED)
    documents: list[str | TitledText] = Field(
        description="Texts, or objects with title and text.", json_schema_extra={"minItems": 1}
    )
    model: str | None = Field(None, description="The name of the re-ranker; optional.")
    top_n: Count = Field(None, description="Number of best documents to return; by default all.")
    return_documents: bool = False


class Reasons(BaseModel):
    """One index's explanation of a hit; fields that do not apply are omitted."""

    index: str
    rank: int | None = Field(description="Rank from 1; null if the index did not retrieve the document.")
    score: float | None
    dense: float | None = None
    lexical: float | None = None
    view: str | None = None
    view_number: int | None = None
    views: int | None = None
    sentence: str | None = Field(None, description="The sentence nearest to the query, where a text has one vector.")
    sentence_score: float | None = None
    terms: dict[str, float] = Field({}, description="Terms with their contributions to the score.")
    tokens: list[dict[Literal["query", "document", "score"], str | float]] = Field(
        [], description="Tokens of the query, each with the most similar one of the document."
    )


Span = Annotated[list[int], Field(min_length=2, max_length=2)]
"""Start and end."""


class PassageBody(BaseModel):
    """A passage that matches the query."""

    rank: int | None = Field(description="Rank from 1; for a passage of a document, its rank in the document.")
    score: float
    id: str
    title: str
    snippet: str
    fields: dict[str, _Scalar | list[_Scalar]] = Field({}, description="Metadata of the passage.")
    heading: str = Field("", description='Headings above the passage: "Guide > Install"; omitted if there are none.')
    page: int | None = Field(None, description="Page, slide or sheet of the passage, from 1; omitted if unknown.")
    spans: list[Span] = Field(description="Positions of matching words in the snippet, in characters.")
    matches: list[str]
    why: list[str] = Field(description="Explanations as sentences.")
    found: list[Reasons] = Field(description="The explanation of each index.")
    text: str | None = None


class HitBody(PassageBody):
    """A hit; a document's snippet, explanation and text come from its best passage."""

    passages: list[PassageBody] = Field(
        [], description="Matching passages of the document, best first; omitted if the hit is a passage."
    )
    retrieved: dict[Literal["rank", "score"], float] | None = Field(
        None, description="Rank and score before re-ranking."
    )


class ExplainBody(BaseModel):
    """Explained documents; the rank is null if a search would not retrieve the document."""

    query: str
    indexes: list[str]
    fusion: dict[str, Any] | None
    hits: list[HitBody]
    generation: int = Field(description="Number of times the indexes were opened, reloads included.")


class SearchBody(ExplainBody):
    """The hits of a query."""

    reranker: str | None
    k: int
    doubt: str | None = Field(
        description="Reasons why probably no hit answers the query: the best score is not above the scores of made-up "
        "words, and the hits lack the query's words. Null if there are none, or if they are unknown."
    )
    notes: list[str] = Field(description="Values that the filter could not compare, and other notes on the search.")
    took_ms: float = Field(description="Milliseconds in the service, waiting included.")


class PlacedPassage(BaseModel):
    """A passage of a document, with its position in the text."""

    id: str
    start: int
    end: int
    heading: str = Field("", description='Headings above the passage: "Guide > Install".')
    page: int | None = Field(None, description="Page, slide or sheet of the passage, from 1; null if unknown.")


class DocumentBody(BaseModel):
    """A whole document."""

    id: str
    title: str
    text: str
    spans: list[Span] = Field(description="Positions of the query's words, in characters.")
    passages: list[PlacedPassage] = Field(description="Passages of the document, in order.")
    file: str | None = Field(description="File of the document, if the corpus is a folder of documents.")


class Embedding(BaseModel):
    """A vector."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class Model(BaseModel):
    """A model of /v1/embeddings."""

    id: str
    object: Literal["model"] = "model"
    created: int = 0
    owned_by: str = "retrievalkit"


class ModelsBody(BaseModel):
    """OpenAI's list of models."""

    object: Literal["list"]
    data: list[Model]


class EmbeddingBody(BaseModel):
    """OpenAI's response with embeddings."""

    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: dict[Literal["prompt_tokens", "total_tokens"], int]


class Scored(BaseModel):
    """A document's rank and score after re-ranking."""

    index: int = Field(description="Position in the request, from 0.")
    relevance_score: float = Field(description="The re-ranker's score: a logit, as in rkit rerank.")
    document: TitledText | None = None


class RerankBody(BaseModel):
    """Re-ranked documents, best first."""

    model: str
    results: list[Scored]


class ErrorDetail(BaseModel):
    """The error of a request."""

    message: str = Field(description="The problem, what is known, and what to do.")
    type: str = Field(description="The exception of retrievalkit.errors; at /v1, invalid_request_error for a mistake.")
    param: None = None
    code: int | None = Field(description="The HTTP status; null at /v1.")


class ErrorBody(BaseModel):
    """A failed request."""

    error: ErrorDetail
