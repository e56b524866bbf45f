"""Query parameters that all routes share."""

from pydantic import BaseModel, ConfigDict


class Query(BaseModel):
    """Unknown parameters are refused."""

    model_config = ConfigDict(extra="forbid", populate_by_name=False)


class NoQuery(Query):
    """No parameters at all."""
