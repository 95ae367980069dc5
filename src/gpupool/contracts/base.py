"""What all messages share: strict about what we send, tolerant of what a newer peer adds."""

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]
"""1-63 characters, lower-case letters, digits and inner hyphens: fit for host names, files and labels."""
Id = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]{1,100}$")]
WithoutNul = AfterValidator(lambda text: text.replace("\0", "\N{REPLACEMENT CHARACTER}"))
"""A program may print anything, but no database column takes a NUL: refused, its report would come again for ever."""
Text = Annotated[str, StringConstraints(max_length=2000), WithoutNul]
Number = Annotated[int, Field(ge=0, lt=2**31)]
"""As large as an integer column of every database."""
Measure = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Message(BaseModel):
    """A message between processes; unknown fields are ignored, so that old and new can talk."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class Input(BaseModel):
    """Something a person or script writes; unknown fields are refused, since they are typing mistakes."""

    model_config = ConfigDict(extra="forbid", frozen=True)
