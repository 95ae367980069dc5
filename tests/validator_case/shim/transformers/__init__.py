"""Stands in for the tokenizer library: the validator counts tokens nowhere in what is tested here."""

from typing import Self


class AutoTokenizer:
    """A tokenizer that takes each letter for a token."""

    @classmethod
    def from_pretrained(cls, *_: object, **__: object) -> Self:
        """Return one, whatever model is named."""
        return cls()

    def encode(self, text: str, *_: object, **__: object) -> list[str]:
        """Return the letters."""
        return list(text)
