"""Forms of a text: the normal form, to compare texts, and the plain form, in which documents are read and searched.

Two questions or passages are the same text if their normal forms are equal. The normal form is the Unicode Standard's
NFKC_Casefold, with each run of white space as a single blank and none at the ends. It ignores what a copy, a keyboard
or a file format changes without changing the words:

- composed and decomposed letters, full-width and half-width forms, ligatures, superscripts (compatibility forms),
- case,
- tabs, line ends, non-breaking and repeated blanks,
- characters that are not shown: zero-width characters, soft hyphens, byte-order marks, variation selectors.

Accents, punctuation and word order count. A passage is its text; its title counts only if it has no text, because
copies of a passage often have other titles, and texts in training examples have none.

The definition holds for batches (masked negatives), held-out and dev questions, mining, merging of examples, and the
search for passages by their text. Models, answers and the detection of changed passages read texts as they are.

The plain form gives each letter and blank one code: letters are composed (NFC), without ligatures, presentation forms,
full and half width; marks that are not shown (soft hyphens, word joiners, marks of direction) are left out. Passages in
plain form record it, and so do vectors and indexes of only such passages: their queries, filters and ids are put into
plain form, too. Everything else, such as corpora in BEIR's format, is searched byte for byte.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
import zlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from retrievalkit.data.corpus import Passage

# Unicode's Default_Ignorable_Code_Point.
_HIDDEN = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f"
    "\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]+"
)

PLAIN = "nfc-plain"
"""The record of the plain form, in passages and manifests."""
_LETTERS = (0x132, 0x133, 0x587, *range(0x1C4, 0x1CD), *range(0x1F1, 0x1F4), *range(0xFB00, 0xFFEF))
_BLANKS = (0xA0, 0x1680, *range(0x2000, 0x200B), 0x202F, 0x205F, 0x3000)
_MARKS = (0xAD, 0x61C, 0x200E, 0x200F, *range(0x202A, 0x202F), 0x2060, *range(0x2066, 0x206A), 0xFEFF)
_PLAIN: dict[int, str | None] = {
    # A mark of its own, such as a full-width macron, would become a blank and a mark on it.
    **{code: form for code in _LETTERS if not (form := unicodedata.normalize("NFKC", chr(code))).startswith(" ")},
    **dict.fromkeys(_BLANKS, " "),
    **dict.fromkeys((0x2028, 0x2029), "\n"),
    **dict.fromkeys(_MARKS),
}


def plain_form(text: str) -> str:
    """Return the plain form of a text."""
    return text if text.isascii() else unicodedata.normalize("NFC", text.translate(_PLAIN))


FORMS: dict[str, Callable[[str], str]] = {"": str, PLAIN: plain_form}
"""The record of a form -> the function that puts a text into it; "" = no record, texts stay as they are."""


def plain_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields with names and texts in plain form; values of names that become equal are joined in a list."""
    plain: dict[str, Any] = {}
    for name, value in fields.items():
        values = [plain_form(item) if isinstance(item, str) else item for item in _listed(value)]
        name = plain_form(name) if isinstance(name, str) else name
        whole = values if isinstance(value, list) else values[0]
        plain[name] = [*_listed(plain[name]), *values] if plain.get(name, whole) != whole else whole
    return plain


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


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
