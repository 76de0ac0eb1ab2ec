"""D9, D7: pictures by address. What a URL may reach is decided by the operator, and by the address connected to."""

from __future__ import annotations

import asyncio
import gzip
import os
import socket
from ipaddress import ip_address

import httpx
import openai
import pytest
from pydantic import ValidationError

from api.errors import ApiError
from api.openai.addresses import METADATA, AddressRule, is_public
from api.openai.fetch import Budget, PictureFetcher, RemotePicture, read_file
from api.services import Services
from pipeline.config import PicturesConfig, WatchwordConfig
from tests.api.conftest import MODEL, error_of
from tests.api.live_server import LiveServer
from tests.api.picture_host import Names, PictureHost, plain, redirect
from tests.api.pictures import encoded, image_part

PICTURE = encoded()
PARAM = "messages[0].content[0].image_url.url"
MIB = 1024 * 1024


@pytest.fixture(scope="module")
def host():
    with PictureHost({"/a.jpg": plain(PICTURE, content_type="text/plain")}) as host:
        yield host


def config(host: PictureHost, **fields) -> PicturesConfig:
    """Lets pictures be fetched from that server's port, under any name, at 127.0.0.1 alone."""
    given = dict(url_hosts=(f"*:{host.port}",), url_schemes=("http", "https"), url_networks=("127.0.0.1/32",))
    return PicturesConfig(**{**given, **fields})


async def fetch(url: str, config: PicturesConfig, names: Names | None = None, budget: int = 64 * MIB) -> bytes:
    return await PictureFetcher(config, names).fetch(RemotePicture(url, PARAM), Budget(budget))


async def refusal(url: str, config: PicturesConfig, names: Names | None = None, budget: int = 64 * MIB) -> ApiError:
    """The 400 that the URL earns."""
    with pytest.raises(ApiError) as refused:
        await fetch(url, config, names, budget)
    assert refused.value.status == 400 and refused.value.param == PARAM
    return refused.value


# What is allowed -----------------------------------------------------------------------------------------------------


async def test_a_picture_is_fetched_and_nothing_of_ours_goes_along(host, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    assert await fetch(f"http://pictures.example:{host.port}/a.jpg?x=1", config(host), names_of(host)) == PICTURE
    head = host.requests[-1].lower()
    assert head.startswith("get /a.jpg?x=1 http/1.1")
    assert f"host: pictures.example:{host.port}" in head and "accept-encoding: identity" in head
    assert "cookie" not in head and "authorization" not in head


def names_of(host: PictureHost) -> Names:
    return Names(pictures_example=[["127.0.0.1"]])


@pytest.mark.parametrize(
    ("allowed", "url", "passes"),
    [
        ("images.example.com", "https://images.example.com/x", True),
        ("images.example.com", "https://IMAGES.example.com./x", True),
        ("images.example.com", "https://images.example.com:8443/x", False),
        ("images.example.com:8443", "https://images.example.com:8443/x", True),
        ("images.example.com", "https://evil.images.example.com/x", False),
        ("images.example.com", "https://images.example.com.evil.org/x", False),
        ("images.example.com", "https://evil.org/images.example.com", False),
        ("images.example.com", "https://evil.org#images.example.com", False),
        ("images.example.com", "https://evil.org?images.example.com", False),
        ("*.example.com", "https://a.b.example.com/x", True),
        ("*.example.com", "https://example.com/x", False),
        ("*.example.com", "https://notexample.com/x", False),
        ("*", "https://anything.org/x", True),
        ("*", "http://anything.org/x", False),
    ],
)
async def test_only_hosts_of_the_allow_list_are_looked_up(allowed, url, passes):
    names = Names(**{name: [["10.0.0.1"]] for name in ("images_example_com", "a_b_example_com", "anything_org")})
    error = await refusal(url, PicturesConfig(url_hosts=(allowed,)), names)
    # The addresses are private, so even what passes ends there: nothing is connected to in this test.
    assert bool(names.asked) is passes
    assert error.code == "image_url_not_allowed" and ("pictures.url_networks" in error.message) is passes


@pytest.mark.parametrize(
    ("hosts", "networks"),
    [(("https://x.com",), ()), (("x.com/path",), ()), (("UPPER.com",), ()), ((), ("10.0.0.1/8",)), ((), ("here",))],
)
def test_what_is_no_host_or_network_is_refused_at_start(hosts, networks):
    with pytest.raises(ValidationError):
        PicturesConfig(url_hosts=hosts, url_networks=networks)


@pytest.mark.parametrize(
    "url",
    [
        "https://user:password@images.example.com/x",
        "https://images.example.com@evil.org/x",
        "https://images.example.com\\@evil.org/x",
        "https://evil.org\\.images.example.com/x",
        "https://images.example.com/\r\nX-Injected: 1",
        "https://images.example.com/a b",
        "https://images.example.com\x00.evil.org/x",
        "https:///x",
        "https://",
        "https:images.example.com",
        "https://[::1",
        "https://images.example.com:99999/",
        "https://2130706433/",
        "https://0x7f000001/",
        "https://0x7f.0.0.1/",
        "https://0177.0.0.1/",
        "https://127.1/",
        "https://[fe80::1%25eth0]/",
        "https://%31%32%37.0.0.1/",
        "https://" + "a" * 64 + ".example.com/",
        "https://images.example.com/" + "x" * 5000,
    ],
)
async def test_d9_urls_that_two_parsers_may_read_differently_are_refused_before_any_look_up(url):
    names = Names()
    error = await refusal(url, PicturesConfig(url_hosts=("*", "images.example.com")), names)
    assert error.code in ("invalid_image_url", "image_url_not_allowed")
    assert names.asked == [] and "user:" not in error.message


# Addresses -----------------------------------------------------------------------------------------------------------


INSIDE = """
127.0.0.1 127.255.0.1 0.0.0.0 10.0.0.1 172.16.0.1 172.31.255.255 192.168.1.1 169.254.169.254 169.254.0.1
100.64.0.1 192.0.0.192 192.0.2.1 192.88.99.1 198.18.0.1 198.51.100.1 203.0.113.1 224.0.0.1 239.1.1.1 240.0.0.1
255.255.255.255 168.63.129.16 100.100.100.200 :: ::1 ::127.0.0.1 ::ffff:127.0.0.1 ::ffff:10.0.0.1 ::ffff:a9fe:a9fe
64:ff9b::7f00:1 64:ff9b::a9fe:a9fe 64:ff9b:1::1 100::1 2001::1 2001:db8::1 2002:7f00:1:: 3fff::1 fc00::1
fd00:ec2::254 fe80::1 fe80::1%eth0 fec0::1 ff02::1 5f00::1 nonsense
"""


@pytest.mark.parametrize("address", INSIDE.split())
def test_d9_no_address_of_the_inside_is_allowed(address):
    assert not AddressRule().allows(address)


@pytest.mark.parametrize(
    "address", ["8.8.8.8", "93.184.216.34", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"]
)
def test_public_addresses_are_allowed(address):
    assert AddressRule().allows(address)


def test_named_networks_are_allowed_and_metadata_never():
    rule = AddressRule(("10.1.0.0/16", "169.254.0.0/16", "fd00::/8", "127.0.0.0/8"))
    assert rule.allows("10.1.2.3") and rule.allows("::ffff:10.1.2.3") and rule.allows("169.254.7.7")
    assert not rule.allows("10.2.0.1") and not rule.allows("192.168.0.1")
    assert not any(rule.allows(str(address)) or is_public(ip_address(address)) for address in METADATA)


@pytest.mark.parametrize(
    "addresses", [["127.0.0.2"], ["::1"], ["169.254.169.254"], ["10.0.0.1"], ["127.0.0.1", "10.0.0.1"], []]
)
async def test_d9_a_name_with_an_address_inside_is_refused_without_saying_which(host, addresses):
    before = len(host.requests)
    error = await refusal(f"http://inside.example:{host.port}/a.jpg", config(host), Names(inside_example=[addresses]))
    assert error.code == "image_url_not_allowed" and "not public" in error.message
    assert not any(address in error.message for address in addresses)
    assert len(host.requests) == before


async def test_d9_a_name_that_changes_its_mind_is_looked_up_once(host):
    """DNS rebinding: the address that was checked is the one connected to."""
    names = Names(rebinds_example=[["127.0.0.1"], ["127.0.0.2"]])
    assert await fetch(f"http://rebinds.example:{host.port}/a.jpg", config(host), names) == PICTURE
    assert names.asked == ["rebinds.example"]
    # The next request is checked anew.
    assert (await refusal(f"http://rebinds.example:{host.port}/a.jpg", config(host), names)).code is not None


async def test_d9_the_real_resolver_and_addresses_in_urls_are_checked_too(host):
    for name in ("localhost", "127.0.0.1", "[::1]", "[::ffff:127.0.0.1]"):
        closed = PicturesConfig(url_hosts=(f"*:{host.port}",), url_schemes=("http",))
        assert (await refusal(f"http://{name}:{host.port}/a.jpg", closed)).code == "image_url_not_allowed"
    assert await fetch(f"http://127.0.0.1:{host.port}/a.jpg", config(host)) == PICTURE


# Redirects -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "location",
    [
        "http://169.254.169.254/latest/meta-data/",
        "//169.254.169.254/",
        "http://other.example:{port}/a.jpg",
        "http://pictures.example/a.jpg",
        "file:///etc/passwd",
        "gopher://pictures.example:{port}/",
        "http://user@pictures.example:{port}/a.jpg",
        "http://[",
    ],
)
async def test_d9_redirects_to_another_host_are_not_followed(host, location):
    host.answers["/away"] = redirect(location.format(port=host.port))
    names = Names(pictures_example=[["127.0.0.1"]], other_example=[["127.0.0.1"]])
    before = len(host.requests)
    error = await refusal(f"http://pictures.example:{host.port}/away", config(host), names)
    assert error.code in ("image_url_not_allowed", "invalid_image_url", "image_url_failed")
    assert len(host.requests) == before + 1 and names.asked == ["pictures.example"]


async def test_redirects_on_the_same_host_are_followed_so_many_times(host):
    host.answers["/1"] = redirect("/2", "301 Moved")
    host.answers["/2"] = redirect(f"http://pictures.example:{host.port}/a.jpg", "307 Temporary")
    host.answers["/round"] = redirect("/round")
    url = f"http://pictures.example:{host.port}"
    assert await fetch(f"{url}/1", config(host), names_of(host)) == PICTURE
    assert (
        "redirects more than 1 times"
        in (await refusal(f"{url}/1", config(host, url_max_redirects=1), names_of(host))).message
    )
    before = len(host.requests)
    assert "redirects more than 3" in (await refusal(f"{url}/round", config(host), names_of(host))).message
    assert len(host.requests) == before + 4


# Bytes and time ------------------------------------------------------------------------------------------------------


async def endless(writer: asyncio.StreamWriter, path: str) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        writer.write(b"\0" * 65536)
        await writer.drain()


async def silent(writer: asyncio.StreamWriter, path: str) -> None:
    await writer.drain()
    await asyncio.Event().wait()


async def dripping(writer: asyncio.StreamWriter, path: str) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
    while True:
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(0.02)


async def test_d9_a_body_without_end_is_cut_off_at_the_cap(host):
    host.answers["/endless"] = endless
    error = await refusal(
        f"http://pictures.example:{host.port}/endless", config(host, url_max_bytes=MIB), names_of(host)
    )
    assert error.code == "image_too_large" and str(MIB) in error.message
    assert await asyncio.to_thread(host.closed.acquire, timeout=20), "the connection was not closed"


async def test_d9_a_gigabyte_is_refused_by_its_announcement(host):
    async def announced(writer: asyncio.StreamWriter, path: str) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1073741824\r\n\r\n")

    host.answers["/gigabyte"] = announced
    error = await refusal(f"http://pictures.example:{host.port}/gigabyte", config(host), names_of(host))
    assert error.code == "image_too_large"


async def test_d9_nothing_is_decompressed(host):
    bomb = gzip.compress(b"\0" * 50 * MIB)
    host.answers["/gzip"] = plain(bomb, content_encoding="gzip")
    error = await refusal(f"http://pictures.example:{host.port}/gzip", config(host), names_of(host))
    assert "compressed" in error.message


@pytest.mark.parametrize("answer", [silent, dripping])
async def test_d9_a_server_that_takes_its_time_is_left(host, answer):
    host.answers["/slow"] = answer
    url = f"http://pictures.example:{host.port}/slow"
    error = await refusal(url, config(host, url_timeout_s=0.3), names_of(host))
    assert (error.code == "image_url_failed" and "0.3 s" in error.message) or "in time" in error.message


async def test_d9_a_name_server_that_hangs_is_left():
    async def never(host: str, port: int) -> list[str]:
        await asyncio.Event().wait()
        return []

    error = await refusal("https://a.example/", PicturesConfig(url_hosts=("*",), url_timeout_s=0.2), never)
    assert "0.2 s" in error.message


async def test_the_pictures_of_one_request_share_a_budget(host):
    budget = Budget(len(PICTURE) + 10)
    fetcher = PictureFetcher(config(host), names_of(host))
    picture = RemotePicture(f"http://pictures.example:{host.port}/a.jpg", PARAM)
    await fetcher.fetch(picture, budget)
    with pytest.raises(ApiError, match="together"):
        await fetcher.fetch(picture, budget)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (plain(b"secret words", "500 Oops"), "answers 500"),
        (plain(b"secret words", "404 Not Found"), "answers 404"),
        (plain(b""), "is empty"),
        (plain(b"", "304 Not Modified"), "answers 304"),
    ],
)
async def test_d7_what_a_server_answers_is_named_and_its_words_are_not_repeated(host, answer, words):
    host.answers["/bad"] = answer
    error = await refusal(f"http://pictures.example:{host.port}/bad?token=abcdef", config(host), names_of(host))
    assert words in error.message and "secret" not in error.message and "abcdef" not in error.message


async def test_d7_unreachable_is_400_with_the_cause(host):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    closed = config(host, url_hosts=("*", f"*:{port}"))
    assert "refuses connections" in (await refusal(f"http://127.0.0.1:{port}/x.png", closed)).message
    assert "no such host" in (await refusal("http://nothing.invalid/x.png", closed)).message


async def test_d7_what_is_no_web_server_is_400(host):
    async def shell(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-OpenSSH_9.9\r\n")
        await reader.read(100)
        writer.close()

    async with await asyncio.start_server(shell, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        allowed = config(host, url_hosts=(f"*:{port}",))
        assert "HTTP" in (await refusal(f"http://127.0.0.1:{port}/", allowed)).message
        assert "TLS" in (await refusal(f"https://127.0.0.1:{port}/", allowed)).message


# Files ---------------------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "open" / "deep").mkdir(parents=True)
    (tmp_path / "open-not").mkdir()
    for name in ("open/a.jpg", "open/deep/b b.jpg", "secret.jpg", "open-not/c.jpg"):
        (tmp_path / name).write_bytes(PICTURE)
    (tmp_path / "open" / "out.jpg").symlink_to(tmp_path / "secret.jpg")
    (tmp_path / "open" / "up").symlink_to(tmp_path)
    (tmp_path / "open" / "in.jpg").symlink_to("a.jpg")
    os.mkfifo(tmp_path / "open" / "pipe")
    return tmp_path


def read(url: str, folder, **fields) -> bytes:
    return read_file(RemotePicture(url, PARAM), PicturesConfig(folder=folder, **fields), Budget(MIB))


def test_files_below_the_folder_are_read(folder):
    for path in ("open/a.jpg", "open/deep/b%20b.jpg", "open/in.jpg"):
        assert read(f"file://{folder}/{path}", folder / "open") == PICTURE
        assert read(f"file://localhost{folder}/{path}", folder / "open") == PICTURE


@pytest.mark.parametrize(
    "path",
    [
        "secret.jpg",
        "open/../secret.jpg",
        "open/%2e%2e/secret.jpg",
        "open/..%2fsecret.jpg",
        "open/out.jpg",
        "open/up/secret.jpg",
        "open-not/c.jpg",
        "open/nothing.jpg",
        "open/deep",
        "open/pipe",
        "open/%00a.jpg",
        "open/a.jpg?x",
        "open/%ff.jpg",
    ],
)
def test_files_elsewhere_are_refused_and_look_as_if_they_were_not_there(folder, path):
    with pytest.raises(ApiError) as refused:
        read(f"file://{folder}/{path}", folder / "open")
    assert refused.value.status == 400 and refused.value.param == PARAM
    assert str(folder) not in refused.value.message


@pytest.mark.parametrize("url", ["file://example.com/etc/passwd", "file:etc/passwd", "file:", "file:///dev/zero"])
def test_other_file_urls_are_refused(folder, url):
    with pytest.raises(ApiError):
        read(url, folder / "open")


def test_large_files_and_the_switch(folder):
    with pytest.raises(ApiError, match="url_max_bytes"):
        (folder / "open" / "big.jpg").write_bytes(b"\0" * 5000)
        read(f"file://{folder}/open/big.jpg", folder / "open", url_max_bytes=4096)
    with pytest.raises(ApiError, match=r"off on this server \(pictures.folder\)") as refused:
        read(f"file://{folder}/open/a.jpg", None)
    assert refused.value.code == "image_url_fetching_off"


# Against the live server ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fetching(engine, host, tmp_path_factory):
    """A server that fetches from that host and reads files of a folder, and takes three pictures a request."""
    folder = tmp_path_factory.mktemp("pictures")
    (folder / "a.jpg").write_bytes(PICTURE)
    pictures = config(host, folder=folder, url_max_bytes=MIB, url_timeout_s=5, max_per_request=3)
    with LiveServer(Services(WatchwordConfig(pictures=pictures), engine, None, None, MODEL)) as server:
        yield server, folder


def ask(base: str, *urls: str) -> httpx.Response:
    content = [*(image_part(url) for url in urls), {"type": "text", "text": "What is it?"}]
    body = {"messages": [{"role": "user", "content": content}], "max_tokens": 2}
    return httpx.post(f"{base}/v1/chat/completions", json=body, timeout=60)


def respond(base: str, url: str) -> httpx.Response:
    content = [{"type": "input_image", "image_url": url}, {"type": "input_text", "text": "What is it?"}]
    body = {"input": [{"role": "user", "content": content}], "max_output_tokens": 2}
    return httpx.post(f"{base}/v1/responses", json=body, timeout=60)


def test_chat_and_responses_see_fetched_pictures(fetching, host):
    server, folder = fetching
    for url in (f"http://127.0.0.1:{host.port}/a.jpg", f"file://{folder}/a.jpg"):
        assert ask(server.url, url).json()["usage"]["prompt_tokens"] > 64
        assert respond(server.url, url).json()["usage"]["input_tokens"] > 64


def test_d9_d7_the_live_server_refuses_with_400_and_the_field(fetching, host):
    server, folder = fetching
    host.answers["/metadata"] = redirect("http://169.254.169.254/latest/meta-data/")
    host.answers["/endless"] = endless
    host.answers["/text"] = plain(b"no picture at all", content_type="image/png")
    here = f"http://127.0.0.1:{host.port}"
    for url in (
        "http://127.0.0.1:1/x.png",
        "http://169.254.169.254/latest/meta-data/",
        f"http://localhost:{host.port}x/a.jpg",
        f"{here}/metadata",
        f"{here}/endless",
        f"{here}/text",
        f"{here}/nothing",
        "file:///etc/passwd",
        f"file://{folder}/../secret",
    ):
        response = ask(server.url, url)
        error = error_of(response)
        assert response.status_code == 400 and error["type"] == "invalid_request_error", (url, error)
        if "/text" not in url:
            assert error["param"] == "messages[0].content[0].image_url.url", url
            assert error_of(respond(server.url, url))["param"] == "input[0].content[0].image_url"
    assert httpx.get(f"{server.url}/health/ready").status_code == 200


def test_d9_fetching_is_off_by_default(client, server, host):
    before = len(host.requests)
    for url in (f"http://127.0.0.1:{host.port}/a.jpg", "HTTPS://example.com/x.png"):
        assert error_of(ask(server.url, url))["code"] == "image_url_fetching_off"
    assert error_of(ask(server.url, "file:///etc/passwd"))["code"] == "image_url_fetching_off"
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(
            messages=[{"role": "user", "content": [image_part("https://example.com/x.png")]}], model=MODEL
        )
    assert len(host.requests) == before


def test_too_many_pictures_are_400_with_the_numbers(fetching, host):
    server, _ = fetching
    response = ask(server.url, *[f"http://127.0.0.1:{host.port}/a.jpg"] * 4)
    assert response.status_code == 400
    assert "4 pictures, allowed are 3" in error_of(response)["message"]


def test_a17_who_leaves_during_the_download_ends_it(fetching, host):
    server, _ = fetching
    host.answers["/endless-slowly"] = dripping
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(
            f"{server.url}/v1/chat/completions",
            json={
                "messages": [{"role": "user", "content": [image_part(f"http://127.0.0.1:{host.port}/endless-slowly")]}]
            },
            timeout=httpx.Timeout(10, read=0.5),
        )
    assert host.closed.acquire(timeout=20), "the download went on"
