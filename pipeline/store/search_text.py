"""What events are found by: words and tags, and queries over them. Pure.

The same rules on every database: text is folded and cut into words here, for the index and for queries alike, so that
a full-text engine is only ever given plain words.

* Words are runs of letters and digits, in lower case and without diacritics (``Jäckchen`` is ``jackchen``).
* Tags stand for exact facts such as the camera: a letter and a hash of the value.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MAX_TERMS = 32
"""Terms of a query beyond these are left out."""
MAX_WORD = 64
"""Characters of a word that count, in the index and in queries."""
EVERY = "e"
"""The tag that every event has."""
TIE_BITS = 20
_LAST_NUMBER = 2**63 - 1
_QUOTES = re.compile("[“”„«»]")
_PIECE = re.compile(r'(-?)(?:"([^"]*)"?|([^\s"]+))')
# Letters that Unicode does not decompose.
_PLAIN = str.maketrans(
    {
        "ø": "o",
        "ł": "l",
        "đ": "d",
        "ð": "d",
        "þ": "th",
        "æ": "ae",
        "œ": "oe",
        "\N{LATIN SMALL LETTER DOTLESS I}": "i",
        "ħ": "h",
    }
)


def fold(text: str) -> str:
    """Lower case, compatibility forms resolved, marks dropped."""
    decomposed = unicodedata.normalize("NFKD", text.casefold())
    return "".join(c for c in decomposed if not unicodedata.category(c).startswith("M")).casefold().translate(_PLAIN)


def words_of(text: str) -> list[str]:
    """The words of a text, folded, in their order."""
    return [word[:MAX_WORD] for word in "".join(c if c.isalnum() else " " for c in fold(text)).split()]


def text_of(description: str | None, attributes: Mapping[str, Any] | None) -> str:
    """What goes into the index as words: those of the description, then those of the attributes' values."""
    values = (value for _, value in _leaves(attributes or {}, ""))
    return " ".join(word for text in (description or "", *values) for word in words_of(text))


def tag(kind: str, value: str) -> str:
    """An exact fact as one word. ``kind`` is a letter of its own for each sort of fact."""
    return kind + hashlib.blake2b(value.encode(errors="surrogatepass"), digest_size=8).hexdigest()


def camera_tag(camera: str) -> str:
    return tag("c", camera)


def label_tag(label: str) -> str:
    return tag("l", label)


def state_tag(state: str) -> str:
    return tag("s", state)


def zone_tag(zone: str) -> str:
    return tag("z", zone)


def rule_tag(rule: str) -> str:
    return tag("r", rule)


def attribute_tag(path: str, value: str) -> str:
    """``path`` is the key, dots between those of nested ones: ``upper.colour``."""
    return tag("a", f"{' '.join(words_of(path))}={' '.join(words_of(value))}")


def tags_of(
    camera: str,
    label: str,
    state: str,
    zones: Iterable[str] | None,
    attributes: Mapping[str, Any] | None,
    rules: Iterable[str] | None = None,
) -> str:
    """All tags of an event. An attribute has one for its value and one for each word of it: `dark red` is also red."""
    tags = [EVERY, camera_tag(camera), label_tag(label), state_tag(state), *map(zone_tag, zones or ())]
    tags += map(rule_tag, rules or ())
    for path, value in _leaves(attributes or {}, ""):
        tags += [attribute_tag(path, part) for part in (value, *words_of(value))]
    return " ".join(dict.fromkeys(tags))


def _leaves(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """Paths and texts of nested attributes; a list's items have the path of the list."""
    if isinstance(value, Mapping):
        for key, child in value.items():
            yield from _leaves(child, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list | tuple):
        for child in value:
            yield from _leaves(child, path)
    elif isinstance(value, bool):
        yield path, "yes" if value else "no"
    elif value is not None:
        yield path, str(value)


def time_number(first_seen: float, event_id: str) -> int:
    """A 63-bit number in the order of time: milliseconds since the epoch, then bits of the id's hash as tie-breaker.

    Full-text engines give their hits in the order of row numbers; with these that is the order of time, so that a page
    of the newest hits is read from the end of the index and no hit beyond it is touched.
    """
    tie = int.from_bytes(hashlib.blake2b(event_id.encode(), digest_size=8).digest()) >> (64 - TIE_BITS)
    return first_number(first_seen) | tie


def first_number(time: float) -> int:
    """The lowest number of an event at ``time`` (seconds since the epoch) or later, to the millisecond."""
    return max(0, min(int(time * 1000) << TIE_BITS, _LAST_NUMBER - (1 << TIE_BITS)))


@dataclass(frozen=True, slots=True)
class Term:
    """Words that must follow one another; ``prefix``: the last of them may go on. ``wanted``: False excludes them."""

    words: tuple[str, ...]
    prefix: bool = False
    wanted: bool = True


@dataclass(frozen=True, slots=True)
class Query:
    """Terms that must all hold, and tags that must all be there."""

    terms: tuple[Term, ...] = ()
    tags: tuple[str, ...] = ()

    def as_fts5(self) -> str:
        """For SQLite's MATCH."""
        wanted = [f'tags : "{name}"' for name in self.tags or (EVERY,)]
        wanted += [f"words : {_fts5(term)}" for term in self.terms if term.wanted]
        excluded = [f"words : {_fts5(term)}" for term in self.terms if not term.wanted]
        return " AND ".join(wanted) + "".join(f" NOT {term}" for term in excluded)

    def as_tsquery(self) -> str:
        """For a cast to PostgreSQL's ``tsquery``; the letters behind the colons are weights (see ``0002_search.py``),
        the one before a word keeps it whole (``0007_words_whole.py``)."""
        parts = [f"'{name}':A" for name in self.tags or (EVERY,)]
        for term in self.terms:
            phrase = " <-> ".join(f"'w{word}':D" for word in term.words) + ("*" if term.prefix else "")
            parts.append(("" if term.wanted else "!") + f"({phrase})")
        return " & ".join(parts)


def _fts5(term: Term) -> str:
    return '"' + " ".join(term.words) + '"' + (" *" if term.prefix else "")


def read_query(text: str, tags: Sequence[str] = ()) -> Query:
    """What a person typed: words that must all be there, ``"quoted phrases"``, ``begin*``, ``-without``.

    Anything is a query; what has no letters or digits says nothing. An open quote goes on to the end.
    """
    terms: list[Term] = []
    for minus, quoted, plain in _PIECE.findall(_QUOTES.sub('"', text)):
        # Half a word that goes on with a hyphen or an apostrophe is a phrase: blue-white, don't.
        if words := tuple(words_of(quoted or plain)):
            terms.append(Term(words, prefix=plain.endswith("*"), wanted=not minus))
    return Query(tuple(terms[:MAX_TERMS]), tuple(tags))
