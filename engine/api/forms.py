"""The request fields that ask for a form of the answer (spec/serving.md §6.6)."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictStr, model_validator

from engine.api.constraints import Form
from engine.api.errors import invalid
from engine.api.fields import refuse


class JsonSchema(BaseModel):
    """A schema with its name. It is enforced whether or not `strict` is set."""

    model_config = ConfigDict(extra="ignore", populate_by_name=True)

    name: StrictStr | None = None
    description: StrictStr | None = None
    json_schema: Annotated[dict[str, Any] | StrictBool, Field(alias="schema")]
    strict: StrictBool | None = None


class ResponseFormat(BaseModel):
    """Chat's `response_format`."""

    model_config = ConfigDict(extra="ignore")

    type: StrictStr
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def _check(self) -> "ResponseFormat":
        if self.type not in ("text", "json_object", "json_schema"):
            raise refuse("invalid_value", f"unknown type {self.type[:40]!r}; known: text, json_object, json_schema")
        if self.type == "json_schema" and self.json_schema is None:
            raise refuse("invalid_value", "the type json_schema needs the member json_schema")
        return self

    def form(self, field: str) -> Form | None:
        """What it asks for; `field` is its place in the request."""
        if self.type == "json_object":
            return Form(kind="json_object", field=field)
        if self.type == "json_schema" and self.json_schema is not None:
            return Form(kind="json_schema", value=self.json_schema.json_schema, field=f"{field}.json_schema.schema")
        return None


class FlatFormat(BaseModel):
    """`text.format` of Responses and `output_config.format` of Messages: the schema stands beside the type."""

    model_config = ConfigDict(extra="ignore", populate_by_name=True)

    type: StrictStr
    name: StrictStr | None = None
    description: StrictStr | None = None
    json_schema: Annotated[dict[str, Any] | StrictBool | None, Field(alias="schema")] = None
    strict: StrictBool | None = None

    @model_validator(mode="after")
    def _check(self) -> "FlatFormat":
        if self.type not in ("text", "json_object", "json_schema"):
            raise refuse("invalid_value", f"unknown type {self.type[:40]!r}; known: text, json_object, json_schema")
        if self.type == "json_schema" and self.json_schema is None:
            raise refuse("invalid_value", "the type json_schema needs the member schema")
        return self

    def form(self, field: str) -> Form | None:
        """What it asks for; `field` is its place in the request."""
        if self.type == "json_object":
            return Form(kind="json_object", field=field)
        if self.type == "json_schema":
            return Form(kind="json_schema", value=self.json_schema, field=f"{field}.schema")
        return None


class StructuredOutputs(BaseModel):
    """The extension of all protocols: exactly one member."""

    model_config = ConfigDict(extra="forbid")

    grammar: StrictStr | None = None
    regex: StrictStr | None = None
    choice: list[StrictStr] | None = None

    @model_validator(mode="after")
    def _check(self) -> "StructuredOutputs":
        if sum(each is not None for each in (self.grammar, self.regex, self.choice)) != 1:
            raise refuse("invalid_value", "exactly one of grammar, choice and regex is needed")
        return self

    def form(self, field: str) -> Form:
        """What it asks for; `field` is its place in the request."""
        if self.grammar is not None:
            return Form(kind="grammar", value=self.grammar, field=f"{field}.grammar")
        if self.regex is not None:
            return Form(kind="regex", value=self.regex, field=f"{field}.regex")
        return Form(kind="choice", value=self.choice, field=f"{field}.choice")


def only_form(asked: Form | None, extension: StructuredOutputs | None) -> Form | None:
    """The form of a protocol's own field and of `structured_outputs`, of which one may ask for one.

    Raises:
        ApiError: both do.
    """
    if extension is None:
        return asked
    if asked is not None:
        raise invalid(
            f"structured_outputs: {asked.field} asks for a form too; send one of them",
            code="invalid_value",
            param="structured_outputs",
        )
    return extension.form("structured_outputs")
