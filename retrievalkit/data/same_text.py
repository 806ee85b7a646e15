"""The same text: two questions or passages are the same if their normal forms are equal.

The normal form is the Unicode Standard's NFKC_Casefold, with each run of white space as a single blank and none at the
ends. It ignores what a copy, a keyboard or a file format changes without changing the words:

- composed and decomposed letters, full-width and half-width forms, ligatures, superscripts (compatibility forms),
- case,
- tabs, line ends, non-breaking and repeated blanks,
- characters that are not shown: zero-width characters, soft hyphens, byte-order marks, variation selectors.

Accents, punctuation and word order count. A passage is its text; its title counts only if it has no text, because
copies of a passage often have other titles, and texts in training examples have none.

The definition holds for batches (masked negatives), held-out and dev questions, mining, merging of examples, and the
search for passages by their text. Models, answers and the detection of changed passages read texts as they are.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
import zlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from retrievalkit.data.corpus import Passage

# Unicode's Default_Ignorable_Code_Point.
_HIDDEN = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f"
    "\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]+"
)


def normal_form(text: str) -> str:
    """Return the normal form of a text."""
    if text.isascii():  # the same result, faster
        return " ".join(text.lower().split())
    folded = unicodedata.normalize("NFKC", _HIDDEN.sub("", text)).casefold()
    return " ".join(unicodedata.normalize("NFKC", folded).split())


def same_text(first: str, second: str) -> bool:
    """Return True if two texts are the same."""
    return first == second or normal_form(first) == normal_form(second)


def text_hash(text: str) -> int:
    """Return a 32-bit hash of a text's normal form, equal in every process."""
    return zlib.crc32(normal_form(text).encode(errors="surrogatepass"))


def passage_digest(passage: Passage) -> bytes:
    """Return a digest of a passage's normal form, unique to it for all practical purposes."""
    text = normal_form(passage.text) or f"\n{normal_form(passage.title)}"
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=16).digest()
