"""Which names stand for secrets, so that a value is hidden where only its name tells what it is."""

import re
from typing import Final

WORDS: Final = r"(?:api[_-]?key|apikey|token|secret|passwd|password|passphrase|credentials?|private[_-]?key)"
SECRET_NAME: Final = re.compile(
    rf"{WORDS}$|(?:^|_)(?:key|auth|pass|cookie|dsn)$|(?:database_url|alert_urls?)$|_pwd$|secret|password",
    re.IGNORECASE,
)
HIDDEN: Final = "***"
"""What is shown instead of a secret."""


def is_secret_name(name: str) -> bool:
    """Tell whether a variable of this name holds a secret by the look of it."""
    return SECRET_NAME.search(name) is not None
