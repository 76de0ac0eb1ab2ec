"""Pictures in requests are untrusted input: every malformed one is a 400 in words, none is dropped."""

from __future__ import annotations

import base64

import openai
import pytest

from api.errors import ApiError
from api.openai.chat_request import ChatMessage, engine_messages
from api.openai.images import PIECE, image_bytes
from tests.api.conftest import MODEL
from tests.api.pictures import data_url, encoded, image_part, picture

JPEG = encoded()
BASE64 = base64.b64encode(JPEG).decode()


@pytest.mark.parametrize(
    "url",
    [
        f"data:image/jpeg;base64,{BASE64}",
        f"DATA:image/jpeg;BASE64,{BASE64}",
        f"data:image/jpeg;charset=utf-8;base64,{BASE64}",
        f"data:;base64,{BASE64}",
        f"data:text/plain;base64,{BASE64}",
        f"data:image/jpeg;base64,{BASE64.rstrip('=')}",
        f"data:image/jpeg;base64,{base64.urlsafe_b64encode(JPEG).decode()}",
        "data:image/jpeg;base64,\n" + "\r\n".join(BASE64[i : i + 76] for i in range(0, len(BASE64), 76)) + "\n",
        f"data:image/jpeg;base64,{BASE64.replace('+', '%2B').replace('/', '%2F').replace('=', '%3D')}",
    ],
    ids=["plain", "upper", "params", "no-type", "wrong-type", "no-padding", "url-safe", "newlines", "percent"],
)
def test_d8_every_way_in_which_clients_write_base64_gives_the_same_bytes(url):
    assert image_bytes(url, "messages") == JPEG


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("data:image/png,abc", "invalid_image_url"),
        (f"data:image/png;base64{BASE64}", "invalid_image_url"),
        ("data:image/png;base64,", "empty_image_file"),
        ("data:image/png;base64,%%%", "invalid_base64_image"),
        ("data:image/png;base64,AAAA=AAA", "invalid_base64_image"),
        ("data:image/png;base64,A", "invalid_base64_image"),
        ("data:image/png;base64,häßlich", "invalid_base64_image"),
        ("/etc/passwd", "invalid_image_url"),
        (BASE64, "invalid_image_url"),
        ("", "invalid_image_url"),
    ],
)
def test_d8_every_other_url_is_400_with_the_field_and_the_cause(url, code):
    with pytest.raises(ApiError) as refused:
        image_bytes(url, "messages[0].content[1].image_url.url")
    assert refused.value.status == 400
    assert refused.value.code == code
    assert refused.value.param == "messages[0].content[1].image_url.url"


def ask(client, url: str, role: str = "user"):
    messages = [{"role": role, "content": [image_part(url), {"type": "text", "text": "What is it?"}]}]
    if role != "user":
        messages.append({"role": "user", "content": "Well?"})
    return client.chat.completions.create(messages=messages, model=MODEL, max_tokens=2)


def test_d8_the_type_is_found_by_content(client):
    assert ask(client, data_url(encoded(kind="PNG"), "text/plain")).choices
    with pytest.raises(openai.BadRequestError) as refused:
        ask(client, data_url(b"plain text, whatever it says it is", "image/png"))
    assert "picture" in refused.value.message


def test_d6_a_truncated_jpeg_is_400(client):
    with pytest.raises(openai.BadRequestError) as refused:
        ask(client, data_url(JPEG[: len(JPEG) // 2]))
    assert refused.value.type == "invalid_request_error"


def test_d4_a_decompression_bomb_is_400_before_it_is_decoded(client):
    from PIL import Image

    bomb = encoded(Image.new("1", (20_000, 20_000)), "PNG")
    assert len(bomb) < 100_000
    with pytest.raises(openai.BadRequestError) as refused:
        ask(client, data_url(bomb))
    assert "pixels" in refused.value.message


@pytest.mark.parametrize("role", ["system", "developer", "assistant", "tool"])
def test_d10_d11_pictures_in_other_roles_are_seen(client, role):
    """SmolVLM's template takes them in every role; the prompt holds the picture's tokens."""
    without = client.chat.completions.create(
        messages=[{"role": role, "content": "What is it?"}, {"role": "user", "content": "Well?"}],
        model=MODEL,
        max_tokens=2,
    )
    assert ask(client, data_url(), role).usage.prompt_tokens > without.usage.prompt_tokens + 64


@pytest.mark.parametrize("role", ["system", "tool", "user"])
def test_d10_d11_a_model_that_takes_no_pictures_says_so(text_client, role):
    with pytest.raises(openai.BadRequestError) as refused:
        ask(text_client, data_url(), role)
    assert "pictures" in refused.value.message


def test_padding_before_the_end_of_a_piece_is_refused_and_large_pictures_are_whole():
    """Base64 is decoded in pieces: what is wrong where two of them meet is wrong as anywhere else."""
    data = bytes(range(256)) * 500
    url = f"data:image/png;base64,{base64.b64encode(data).decode()}"
    assert len(url) > 5 * PIECE and image_bytes(url, "x") == data
    at = len("data:image/png;base64,") + PIECE
    with pytest.raises(ApiError):
        image_bytes(url[: at - 2] + "==" + url[at:], "x")


def test_c8_text_and_pictures_keep_their_order(client):
    red, blue = image_part(data_url(encoded(picture("red")))), image_part(data_url(encoded(picture("blue"))))
    parts = [{"type": "text", "text": "A"}, red, {"type": "text", "text": "B"}, blue]
    [message] = engine_messages([ChatMessage(role="user", content=parts)])
    assert [part["type"] for part in message["content"]] == ["text", "image", "text", "image"]
    assert message["content"][1]["image"] == encoded(picture("red"))

    def logprobs(content):
        answer = client.chat.completions.create(
            messages=[{"role": "user", "content": content}], model=MODEL, max_tokens=3, temperature=0, logprobs=True
        )
        return [token.logprob for token in answer.choices[0].logprobs.content]

    # What the model sees changes with the order, and only with it.
    first = logprobs(parts)
    assert logprobs(parts) == pytest.approx(first, abs=1e-4)
    for other in ([parts[0], blue, parts[2], red], [red, blue, parts[0], parts[2]]):
        assert logprobs(other) != pytest.approx(first, abs=1e-4)
