"""Alert rules: which of them an event matches. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from pipeline.config.alerts import AlertRule
from pipeline.delivery.facts import Facts
from pipeline.store.search_text import attribute_tag, tags_of, text_of, words_of


@dataclass(frozen=True, slots=True)
class Phrase:
    """Words, folded, that follow one another; ``prefix``: the last of them may go on."""

    words: tuple[str, ...]
    prefix: bool

    @classmethod
    def of(cls, text: str) -> Phrase:
        return cls(tuple(words_of(text)), text.rstrip().endswith("*"))

    def is_in(self, words: Sequence[str]) -> bool:
        """Whether the phrase stands in a folded text."""
        size = len(self.words)
        return any(self._is_at(words[start : start + size]) for start in range(len(words) - size + 1))

    def _is_at(self, words: Sequence[str]) -> bool:
        if self.prefix:
            return tuple(words[:-1]) == self.words[:-1] and words[-1].startswith(self.words[-1])
        return tuple(words) == self.words


class Rule:
    """One rule, made ready for many events."""

    def __init__(self, config: AlertRule) -> None:
        self.config = config
        self._any = [Phrase.of(text) for text in config.words.any]
        self._all = [Phrase.of(text) for text in config.words.all]
        self._none = [Phrase.of(text) for text in config.words.none]
        self._tags = {attribute_tag(path, value) for path, value in config.attributes.items()}

    def holds(self, facts: Facts) -> bool:
        """Whether the event matches as it stands. What takes least work is looked at first."""
        config = self.config
        return (
            (not config.cameras or facts.camera in config.cameras)
            and (not config.labels or facts.label in config.labels)
            and (not config.zones or not set(config.zones).isdisjoint(facts.zones))
            and facts.last_seen - facts.first_seen >= config.min_duration_s
            and self._is_due(facts)
            and (not config.time or any(hours.holds_at(facts.last_seen) for hours in config.time))
            and (not config.needs_words or self._has_words(facts))
        )

    def _is_due(self, facts: Facts) -> bool:
        match self.config.on:
            case "started":
                return True
            case "described":
                return facts.description is not None
            case "ended":
                return facts.over

    def _has_words(self, facts: Facts) -> bool:
        if facts.description is None:
            return False
        words = text_of(facts.description, facts.attributes).split()
        if self._tags and not self._tags <= set(tags_of("", "", "", (), facts.attributes).split()):
            return False
        return (
            (not self._any or any(phrase.is_in(words) for phrase in self._any))
            and all(phrase.is_in(words) for phrase in self._all)
            and not any(phrase.is_in(words) for phrase in self._none)
        )


class Rules:
    """All rules in the order of the configuration."""

    def __init__(self, configs: Iterable[AlertRule] = ()) -> None:
        self._rules = [Rule(config) for config in configs]

    def __len__(self) -> int:
        return len(self._rules)

    def matching(self, facts: Facts, known: Collection[str] = ()) -> list[AlertRule]:
        """The rules that hold and are not in ``known`` (those that this event has matched already)."""
        return [rule.config for rule in self._rules if rule.config.name not in known and rule.holds(facts)]
