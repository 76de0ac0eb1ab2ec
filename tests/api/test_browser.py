"""The operator page in a real browser, against the real app, Valkey and store."""

from __future__ import annotations

import time

import httpx
import pytest

from pipeline.cli.keys import hash_of
from pipeline.messages import CameraState, ChangeKind, TrackPhase
from pipeline.queue import keys
from pipeline.reasons import REASON_TEXT, Reason
from tests.api.browser import Browser, find_chromium
from tests.api.live_server import LiveServer
from tests.api.pictures import encoded, picture
from tests.api.station import Station
from tests.api.waiting import until

SCRIPT = "<img src=x onerror=document.title='forged'><b>bold</b>"


@pytest.fixture
def browser(tmp_path):
    find_chromium()
    with Browser(tmp_path / "profile") as browser:
        yield browser


@pytest.fixture
def url(station):
    with LiveServer(station.services) as server:
        yield server.url


def text(selector: str) -> str:
    return f"document.querySelector({selector!r})?.textContent"


def test_the_page_shows_cameras_live_and_a_description_as_it_is_written(browser, url, station):
    station.status("front", frame_age=0.2, tracks=1)
    station.status("yard", CameraState.UNREACHABLE, reason=Reason.REFUSED)
    station.preview("front", encoded(picture("navy", (320, 180))))
    now = time.time()
    for number in range(45):
        record = station.person("yard", number, seen=now - 1000 + number)
        station.track("yard", number, TrackPhase.END, seen=now - 1000 + number, stay=2)
        station.describe(record, f"Person {number} in grey.")

    browser.open(url)
    # Cameras: state, picture, reason in words.
    browser.until("document.querySelector('[data-camera=front] .picture:not([hidden])')?.naturalWidth === 320")
    assert browser.run(text("[data-camera=front] .badge")) == "Live"
    assert browser.run(text("[data-camera=front] .people")) == "1 person"
    assert browser.run(text("[data-camera=yard] .reason")) == REASON_TEXT[Reason.REFUSED]
    assert browser.run(text("[data-camera=attic] .placeholder")) == "Switched off"
    assert browser.run(text("#cameras-count")) == "1 of 3 live"

    # Events: newest first, older ones on demand.
    browser.until("document.querySelectorAll('.event').length === 40")
    assert browser.run(text(".event .words")) == "Person 44 in grey."
    browser.run("document.querySelector('#older').click()")
    browser.until("document.querySelectorAll('.event').length === 45")
    assert browser.run("document.querySelector('#older').hidden")
    browser.run("scrollTo(0, 0)")

    # A new person: the card comes to the top, and the words grow, as text and never as markup.
    browser.until("document.querySelector('#link').dataset.state === 'live'")
    until(lambda: any(client["cmd"] == "xread" for client in station.redis.client_list()))
    record = station.person("front", 1)
    station.publish(ChangeKind.CREATED, record)
    browser.until("document.querySelector('.event').dataset.event === 'front.t-1'")
    assert browser.run(text("#announcer")) == "Somebody at Front door"
    browser.until("document.querySelector('.event img.crop')?.naturalWidth === 96")
    written = ""
    for word in ("A ", "person ", "wearing ", SCRIPT):
        written += word
        station.publish(ChangeKind.PARTIAL, record, description=written.strip(), description_state="running")
        browser.until(f"{text('.event .words')} === {written.strip()!r}")
        assert browser.run("document.querySelector('.event').hasAttribute('data-writing')")
    record = station.describe(record, f"A person wearing {SCRIPT}")
    station.publish(ChangeKind.DESCRIBED, record)
    browser.until("!document.querySelector('.event').hasAttribute('data-writing')")
    assert browser.run("document.querySelectorAll('.event b, .event img[onerror]').length") == 0
    assert browser.run("document.title") == "Watchword"

    # By keyboard: open the details, close them.
    browser.run("document.querySelector('.event-camera').focus()")
    browser.press("Enter")
    browser.until("document.querySelector('#details').open")
    assert SCRIPT in browser.run(text("#details .words"))
    browser.press("Escape")
    browser.until("!document.querySelector('#details').open")

    # Only one camera's events.
    browser.run("document.querySelector('#filter').value = 'front'")
    browser.run("document.querySelector('#filter').dispatchEvent(new Event('change'))")
    browser.until("document.querySelectorAll('.event').length === 1")

    # Nothing was fetched from elsewhere, nothing was blocked, nothing failed.
    assert browser.run("performance.getEntriesByType('resource').every((r) => r.name.startsWith(location.origin))")
    assert browser.errors == []
    # At the width of a phone nothing sticks out.
    browser.resize(360, 740, mobile=True)
    assert browser.run("document.documentElement.scrollWidth") <= 360


def test_the_page_searches_as_one_types_and_asks_for_a_description(browser, url, station):
    now = time.time()
    for number, words in enumerate(["A person in a red coat.", "A blue jacket.", "A red hat, a bag."]):
        record = station.person("front", number, seen=now - 1000 + number)
        station.track("front", number, TrackPhase.END, seen=now - 1000 + number, stay=2)
        station.describe(record, words)

    def typing(typed: str) -> None:
        browser.run(f"document.querySelector('#search').value = {typed!r}")
        browser.run("document.querySelector('#search').dispatchEvent(new Event('input'))")

    def shown() -> str:
        return "[...document.querySelectorAll('.event')].map((e) => e.dataset.event).join()"

    browser.open(url)
    browser.until(f"{shown()} === 'front.t-2,front.t-1,front.t-0'")
    browser.until("document.querySelector('#link').dataset.state === 'live'")
    for typed, wanted in (
        ("red", "front.t-2,front.t-0"),
        ("jac", "front.t-1"),
        ('"red co', ""),
        ('"red coat"', "front.t-0"),
        ("red -coat", "front.t-2"),
        ("green", ""),
    ):
        typing(typed)
        browser.until(f"document.querySelector('#feed').ariaBusy === 'false' && {shown()} === {wanted!r}")
    assert browser.run(text("#events-empty-title")) == "Nothing found"

    # Words that come while one searches are found too; others' events don't disturb the list.
    until(lambda: any(client["cmd"] == "xread" for client in station.redis.client_list()))
    late, other = station.person("front", 8), station.person("front", 9)
    for record, words in ((other, "Nobody asked for this."), (late, "A person in green.")):
        station.publish(ChangeKind.CREATED, record)
        station.publish(ChangeKind.DESCRIBED, station.describe(record, words))
    browser.until(f"{shown()} === 'front.t-8'")

    browser.run("document.querySelector('.event-camera').click()")
    browser.until("document.querySelector('#details').open")
    assert browser.run(text("#details .again button")) == "Describe again"
    browser.run("document.querySelector('#details .again button').click()")
    browser.until(f"{text('#details .again p')}.startsWith('Asked for')")
    assert browser.run("document.querySelector('#details .again button').disabled")
    until(lambda: station.redis.xlen(keys.crops("front")) == 1)
    record = station.describe(late, "A person in dark green.")
    station.publish(ChangeKind.DESCRIBED, record)
    browser.until(f"{text('#details .words')} === 'A person in dark green.'")
    assert not browser.run("document.querySelector('#details .again button').disabled")
    assert browser.errors == []


def test_a_person_who_gets_no_words_has_the_reason_instead(browser, url, station):
    record = station.person("front", 1)
    station.store.fail_description(record.crop.crop_id, Reason.DEADLINE, expired=True)
    browser.open(url)
    browser.until("document.querySelector('.event[data-failed]') !== null")
    assert browser.run(text(".event .words")) == ""
    assert REASON_TEXT[Reason.DEADLINE] in browser.run(text(".event .status"))


def test_dropped_counts_what_was_lost_and_the_table_has_what_nobody_had_to_look_at(browser, url, station):
    station.drop("front", Reason.SUPERSEDED, 3)
    station.drop("front", Reason.FRAME_STILL, 700)
    browser.open(url)
    browser.until("document.querySelector('[popovertarget=drops]')?.textContent === '3'")
    assert "700" in browser.run(text("#drops-rows"))


def test_empty_places_say_what_will_be_there(browser, url):
    browser.open(url)
    browser.until("!document.querySelector('#events-empty').hidden")
    assert "Nobody seen yet" in browser.run(text("#events-empty"))
    browser.until(f"{text('[data-camera=front] .badge')} === 'No report'")


def test_the_page_asks_for_a_key_and_goes_on(browser, valkey, tmp_path):
    keys = [{"hash": hash_of("a-chat-key")}, {"hash": hash_of("a-good-key"), "roles": ["viewer"]}]
    station = Station(valkey.connection_url, tmp_path / "data", api_keys=keys)
    station.redis.flushall()
    station.person("front", 1)
    with LiveServer(station.services) as server:
        browser.open(server.url)
        browser.until("document.querySelector('#sign-in').open")
        for key, done in (
            ("wrong", f"{text('#sign-in-wrong')} === 'That key is not accepted.'"),
            ("a-chat-key", f"{text('#sign-in-wrong')}.includes('may not see cameras')"),
            ("a-good-key", "document.querySelectorAll('.event').length === 1"),
        ):
            browser.run(f"document.querySelector('#key').value = {key!r}")
            browser.run("document.querySelector('#sign-in-form').requestSubmit()")
            browser.until(done)
        browser.until("document.querySelector('#link').dataset.state === 'live'")
        assert not browser.run("document.querySelector('#sign-in').open")
        assert browser.run("document.cookie") == ""  # out of scripts' reach
    station.close()


def test_the_page_reconnects_by_itself(browser, station):
    """R03, for the page: the server goes away and comes back on the same port."""
    first = LiveServer(station.services)
    port = int(first.url.rsplit(":", 1)[1])
    with first:
        browser.open(first.url)
        browser.until("document.querySelector('#link').dataset.state === 'live'")
    browser.until("document.querySelector('#link').dataset.state === 'lost'")
    again = Station(station.redis_url, station.config.store.data_dir)
    again.person("front", 1)
    with LiveServer(again.services, port=port):
        browser.until("document.querySelector('#link').dataset.state === 'live'", 20)
        browser.until("document.querySelectorAll('.event').length === 1")
    again.close()


def test_without_cameras_the_page_says_so(browser, server):
    browser.open(server.url)
    browser.until("!document.querySelector('#cameras-empty').hidden")
    assert "OpenAI API alone" in browser.run(text("#cameras-empty"))
    browser.until(f"{text('#strip dd')} === 'Ready'")


def test_the_page_files_are_typed_and_kept_until_they_change(http: httpx.Client):
    for path, kind in (("/", "text/html"), ("/web/style.css", "text/css"), ("/web/main.js", "text/javascript")):
        first = http.get(path)
        assert first.headers["content-type"].startswith(kind)
        again = http.get(path, headers={"If-None-Match": first.headers["etag"]})
        assert again.status_code == 304
    for name in ("nothing.js", "..%2f..%2fapp.py", "../app.py"):
        assert http.get(f"/web/{name}").status_code == 404
    page = http.get("/").text
    assert "style=" not in page and "onclick" not in page and "<script>" not in page
    assert "/source.tar.gz" in page and "AGPL" in page


WALKER = {
    "upper": {"kind": "rain coat", "colours": ["red", "grey"]},
    "lower": {"kind": "unknown", "colours": ["unknown"]},
    "carried": ["umbrella", SCRIPT],
    "posture": "walking",
    "activity": "",
    "helmet": False,
}


def test_attributes_are_labelled_chips_and_each_is_a_filter(browser, url, station):
    now = time.time()
    people = [WALKER, {"upper": {"colours": ["blue"]}, "posture": "walking"}, {"posture": "sitting"}, None]
    views = tuple(encoded(picture(colour)) for colour in ("olive", "navy"))
    for number, attributes in enumerate(people):
        record = station.person("front", number, seen=now - 1000 + number, others=views if number == 0 else ())
        station.track("front", number, TrackPhase.END, seen=now - 1000 + number, stay=2)
        station.describe(record, f"Person {number}.", attributes)

    def chips(selector: str) -> list[str]:
        parts = "[chip.querySelector('b').textContent, ...[...chip.childNodes].slice(1).map((n) => n.textContent)]"
        return browser.run(f"[...document.querySelectorAll('{selector} .chip')].map((chip) => {parts}.join(' '))")

    def shown() -> str:
        return "[...document.querySelectorAll('.event')].map((e) => e.dataset.event).join()"

    def click(selector: str, label: str) -> None:
        found = (
            f"[...document.querySelectorAll('{selector} .chip')].find((chip) => chip.textContent.includes('{label}'))"
        )
        browser.run(f"{found}.click()")

    browser.open(url)
    browser.until("document.querySelectorAll('.event').length === 4")
    walker = '[data-event="front.t-0"]'
    # What isn't known is no chip; what a model wrote is text and never markup.
    said = ["upper rain coat", "upper red", "upper grey", "carried umbrella", f"carried {SCRIPT}"]
    assert chips(walker) == [*said, "posture walking", "helmet no"]
    assert browser.run("document.querySelectorAll('.event b b, .event img[onerror]').length") == 0
    assert chips('[data-event="front.t-3"]') == []

    click(walker, "walking")
    browser.until(f"{shown()} === 'front.t-1,front.t-0'")
    click(walker, "red")
    browser.until(f"{shown()} === 'front.t-0'")
    assert len(chips("#chosen")) == 2
    # A filter is taken away by clicking it, and what is found changes with it.
    click("#chosen", "walking")
    browser.until("document.querySelectorAll('#chosen .chip').length === 1")
    click("#chosen", "red")
    browser.until("document.querySelectorAll('.event').length === 4")
    assert browser.run("document.querySelector('#chosen').hidden")

    # The details show them too, with all views of the person.
    browser.run(f"document.querySelector('{walker} .event-camera').click()")
    browser.until("document.querySelector('#details').open")
    browser.until("document.querySelectorAll('#details .views img').length === 3")
    browser.until("[...document.querySelectorAll('#details .views img')].every((image) => image.naturalWidth === 96)")
    assert "Upper colours" in browser.run(text("#details .facts"))
    assert browser.errors == []
    browser.resize(360, 740, mobile=True)
    assert browser.run("document.documentElement.scrollWidth") <= 360
