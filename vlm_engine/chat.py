"""From chat messages to token ids: the checkpoint's own template, and user text that can never forge special tokens."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from jinja2 import meta
from jinja2.exceptions import TemplateError
from transformers.utils.chat_template_utils import _compile_jinja_template

from vlm_engine.errors import InvalidRequestError
from vlm_engine.prompt import ImageDetail, ImagePart

OWN_VARIABLES = frozenset({"messages", "tools", "documents", "add_generation_prompt", "continue_final_message"})
"""Variables of templates that have arguments of their own."""

_OPEN, _CLOSE = "\ue000", "\ue001"
"""Private-use characters around the number of a piece of literal text while the template is rendered."""


@dataclass(frozen=True, slots=True)
class RenderedPrompt:
    """Token ids of the text between the pictures: ``pieces[0], image 0, pieces[1], image 1, ...``; images in order,
    each with how closely it is to be looked at."""

    pieces: tuple[tuple[int, ...], ...]
    images: tuple[Any, ...]
    details: tuple[ImageDetail, ...]


class ChatRenderer:
    """Renders messages with a tokenizer and a chat template. Stateless after construction; safe to use from threads.

    Args:
        tokenizer: the checkpoint's (fast) tokenizer.
        chat_template: Jinja template; None for a model that has none.
        image_token: the placeholder that the template writes for a picture; None when the model takes no pictures.
        max_characters: longer prompts are refused before they are tokenised, which takes a second a megabyte.
    """

    def __init__(
        self, tokenizer: Any, chat_template: str | None, image_token: str | None, max_characters: int | None = None
    ) -> None:
        self._tokenizer = tokenizer
        self._template = chat_template
        self._max_characters = max_characters
        self.template_variables = _variables(tokenizer, chat_template) if chat_template is not None else frozenset()
        self._image_token = image_token
        special = {str(token) for token in tokenizer.added_tokens_decoder.values() if token.special}
        special |= {image_token} if image_token else set()
        ordered = sorted(special | {_OPEN, _CLOSE}, key=len, reverse=True)
        self._special = re.compile("|".join(re.escape(text) for text in ordered))
        literal = f"{_OPEN}(\\d+){_CLOSE}"
        self._seams = re.compile(f"{literal}|({re.escape(image_token)})" if image_token else f"{literal}|(?!)()")
        with suppress(InvalidRequestError):
            # Compiles the template, which takes the first of many requests long, and all of them if they come at once.
            self.render([{"role": "user", "content": "Hello"}])

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> RenderedPrompt:
        """Tokenises a conversation.

        Special tokens written in message text are encoded as plain text. Text and pictures keep their order.

        Raises:
            InvalidRequestError: the template refuses the messages or drops a picture, or the model takes none;
                ``template_kwargs`` names something that the template doesn't know.
        """
        if self._template is None:
            raise InvalidRequestError("the model has no chat template; use text completion", param="messages")
        for name in template_kwargs or {}:
            if name not in self.template_variables:
                known = ", ".join(sorted(self.template_variables)) or "none"
                raise InvalidRequestError(
                    f"the model's chat template has no variable {name[:100]!r}; it has: {known}",
                    param="chat_template_kwargs",
                )
        literals: list[str] = []
        images: list[ImagePart] = []
        conversation = [self._protect_message(message, literals, images) for message in messages]
        try:
            text = self._tokenizer.apply_chat_template(
                conversation,
                chat_template=self._template,
                tools=[self._protect_value(tool, literals) for tool in tools] if tools else None,
                tokenize=False,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                **self._protect_value(dict(template_kwargs or {}), literals),
            )
        except (TemplateError, ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
            raise InvalidRequestError(f"the chat template refuses the messages: {error}", param="messages") from None
        pieces = self._tokenise(text, literals, len(images))
        details = tuple(part.get("detail", "auto") for part in images)
        return RenderedPrompt(pieces, tuple(part["image"] for part in images), details)

    def encode_text(self, text: str, add_special_tokens: bool = True) -> tuple[int, ...]:
        """Token ids of plain text (text completion); special tokens in it are encoded as plain text.

        Raises InvalidRequestError for a text far beyond the context.
        """
        self._check_length(text)
        return tuple(self._tokenizer.encode(text, add_special_tokens=add_special_tokens, split_special_tokens=True))

    def _protect_message(
        self, message: Mapping[str, Any], literals: list[str], images: list[ImagePart]
    ) -> dict[str, Any]:
        content = message.get("content")
        parts: list[Any] = [{"type": "text", "text": content}] if isinstance(content, str) else list(content or ())
        protected: list[dict[str, str]] = []
        for part in parts:
            if part["type"] == "text":
                protected.append({"type": "text", "text": self._protect(part["text"], literals)})
            elif self._image_token is None:
                raise InvalidRequestError("the model takes no pictures", param="messages")
            else:
                images.append(part)
                protected.append({"type": "image"})
        # Names, tool calls and the like come from outside as much as the text does.
        out = {
            key: value if key in ("role", "content") else self._protect_value(value, literals)
            for key, value in message.items()
        }
        if content is not None:
            # Text-only templates expect strings; those of models with pictures expect parts.
            out["content"] = protected if self._image_token else "".join(part["text"] for part in protected)
        return out

    def _protect(self, text: str, literals: list[str]) -> str:
        def number(match: re.Match[str]) -> str:
            literals.append(match.group())
            return f"{_OPEN}{len(literals) - 1}{_CLOSE}"

        return self._special.sub(number, text)

    def _protect_value(self, value: Any, literals: list[str]) -> Any:
        """A JSON value with every string in it, keys too, protected."""
        if isinstance(value, str):
            return self._protect(value, literals)
        if isinstance(value, Mapping):
            return {self._protect(key, literals): self._protect_value(item, literals) for key, item in value.items()}
        if isinstance(value, Sequence):
            return [self._protect_value(item, literals) for item in value]
        return value

    def _tokenise(self, text: str, literals: Sequence[str], num_images: int) -> tuple[tuple[int, ...], ...]:
        self._check_length(text)
        pieces: list[list[int]] = [[]]
        position = 0
        for seam in self._seams.finditer(text):
            pieces[-1] += self._tokenizer.encode(text[position : seam.start()], add_special_tokens=False)
            position = seam.end()
            if seam.group(1) is None:
                pieces.append([])
            else:
                literal = literals[int(seam.group(1))]
                pieces[-1] += self._tokenizer.encode(literal, add_special_tokens=False, split_special_tokens=True)
        pieces[-1] += self._tokenizer.encode(text[position:], add_special_tokens=False)
        if len(pieces) - 1 != num_images:
            raise InvalidRequestError(
                f"the messages hold {num_images} pictures, the model's chat template places {len(pieces) - 1}; "
                "put pictures into user messages",
                param="messages",
            )
        return tuple(tuple(piece) for piece in pieces)

    def _check_length(self, text: str) -> None:
        if self._max_characters is not None and len(text) > self._max_characters:
            raise InvalidRequestError(
                f"the prompt has {len(text)} characters, none of more than {self._max_characters} fits the context",
                param="messages",
                code="context_length_exceeded",
            )


def _variables(tokenizer: Any, template: str) -> frozenset[str]:
    """What a template takes beside the messages: the names that ``chat_template_kwargs`` may give."""
    names: set[str] = meta.find_undeclared_variables(_compile_jinja_template(template).environment.parse(template))
    return frozenset(names) - OWN_VARIABLES - frozenset(tokenizer.special_tokens_map)
