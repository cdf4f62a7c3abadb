"""The page in a real browser: Debian's chromium, driven by Playwright; skipped, with a word, where there is none."""

import json
import shutil
import time
from contextlib import contextmanager
from urllib.parse import quote
from urllib.request import Request, urlopen

import pytest
from cli.test_serve import serving
from playwright.sync_api import expect, sync_playwright
from serving.small_run import make_events, make_run

from dynedge.serving import drift as traces

CHROMIUM = shutil.which("chromium")
TOKEN = "a token of this test"
NASTY_USER, NASTY_ITEM = '<img src="x" onerror="alert(1)">', "<b>bold</b> & 50% / 'it'?#"

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium is installed: apt-get install chromium")


class Service:
    def __init__(self, address, events):
        self.address, self.events = address, events
        self.user, self.item = events[-1].user, events[-1].item

    def ask(self, path, body=None):
        headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        return json.load(urlopen(Request(self.address + path, data, headers)))

    def send(self, *events):
        keys = "user_id", "item_id", "timestamp"
        return self.ask("/events", {"events": [dict(zip(keys, event[:3], strict=True)) for event in events]})


@pytest.fixture(scope="module")
def service(runs_folder, tmp_path_factory):
    run = make_run(runs_folder, "edge")
    data = tmp_path_factory.mktemp("page") / "data"
    with serving(run, "--data", data, DYNEDGE_TOKEN=TOKEN) as (address, _):
        found = Service(address, make_events(runs_folder, 60, new=0, late=0))
        found.send(*found.events[:-10])
        for event in found.events[-10:]:  # one by one, so that their moves are seen one by one
            found.send(event)
            time.sleep(traces.PAUSE)
        yield found


@pytest.fixture(scope="module")
def browser():
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM)
        yield browser
        browser.close()


@contextmanager
def opened(browser, service, where="", token=TOKEN, width=1280, **more):
    """A page at #/`where`; `page.wrong` collects whatever a browser complains of."""
    context = browser.new_context(viewport={"width": width, "height": 800}, reduced_motion="reduce", **more)
    context.set_default_timeout(10_000)
    if token:
        context.add_init_script(f"sessionStorage.setItem('dynedge token', {json.dumps(token)})")
    page = context.new_page()
    page.wrong = []
    page.on("console", lambda told: page.wrong.append(told.text) if told.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: page.wrong.append(str(error)))
    page.on("dialog", lambda dialog: (page.wrong.append(dialog.message), dialog.dismiss()))
    page.on("request", lambda told: None if told.url.startswith(service.address) else page.wrong.append(told.url))
    page.on("response", lambda told: page.wrong.append(f"{told.status} {told.url}") if told.status >= 400 else None)
    page.goto(f"{service.address}/#/{where}")
    yield page
    context.close()


def at(side, own):
    return f"{side}/{quote(own, safe='')}"


@pytest.mark.parametrize(("width", "scheme", "paper"), [(1280, "light", 255), (360, "dark", 20)])
def test_every_view_loads_quietly_and_fits(browser, service, width, scheme, paper):
    views = {
        "": "Send an event",
        at("users", service.user): "Its way on a map",
        at("items", service.item): "Neighbours",
        "run": "dynedge evaluate edge",
    }
    with opened(browser, service, width=width, color_scheme=scheme) as page:
        for where, words in views.items():
            page.evaluate(f"location.hash = {json.dumps('#/' + where)}")
            expect(page.locator("main")).to_contain_text(words)
            expect(page.locator(".rate strong").first).not_to_have_text("–")
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            drawn = page.locator("main .chart svg, .session .chart svg").all()
            assert len(drawn) >= 2
            assert all(picture.locator("polyline, circle").count() for picture in drawn)
        assert page.evaluate("getComputedStyle(document.body).backgroundColor").startswith(f"rgb({paper},")
        assert page.wrong == []


def test_search_by_keyboard(browser, service):
    with opened(browser, service) as page:
        page.locator("main h1").wait_for()
        page.keyboard.press("/")
        field = page.get_by_role("combobox", name="Search a user or an item")
        expect(field).to_be_focused()
        page.keyboard.type(service.user[:-1].lower())
        expect(page.get_by_role("option", name=service.user)).to_be_visible()
        page.keyboard.press("ArrowDown")
        marked = page.locator(f"#{field.get_attribute('aria-activedescendant')}")
        expect(marked).to_have_attribute("aria-selected", "true")
        page.keyboard.press("ArrowUp")
        page.keyboard.press("Escape")
        expect(marked).to_be_hidden()
        page.keyboard.type(service.user[-1])
        page.keyboard.press("Enter")  # before the list is there: what fits best is taken all the same
        expect(page.locator("main h1")).to_contain_text(service.user)
        page.keyboard.press("/")
        page.keyboard.type("zzz")
        expect(page.get_by_text("No id begins with “zzz”.")).to_be_visible()
        assert page.wrong == []


def test_why_and_what_if_of_which_nothing_is_stored(browser, service):
    before = service.ask("/live")
    with opened(browser, service, at("users", service.user)) as page:
        rows = page.locator(".recommended .ranked li")
        expect(rows).to_have_count(10)
        told = service.ask(f"/users/{quote(service.user)}/recommendations?k=10&why=true")["items"]
        assert rows.locator(".name").all_inner_texts() == [item["item_id"] for item in told]
        share = max(told[0]["why"]["shares"].values())
        expect(rows.first.locator(".why small")).to_contain_text(f"{round(100 * share)}\u202f%")
        assert rows.first.locator(".shares i").count() > 1
        page.get_by_role("combobox", name="What if").fill(told[9]["item_id"])
        page.keyboard.press("Enter")
        expect(page.locator(".outcome")).to_contain_text(f"After {told[9]['item_id']}")
        expect(page.locator(".what-if")).to_contain_text("nothing was stored")
        names = [page.locator(".sides ol").nth(k).locator(".name").all_inner_texts() for k in (0, 1)]
        supposed = service.ask(f"/users/{quote(service.user)}/what-if", {"item_id": told[9]["item_id"]})
        assert names == [[item["item_id"] for item in supposed[side]] for side in ("before", "after")]
        assert names[0] != names[1]
        page.get_by_role("button", name="Clear").click()
        expect(page.locator(".sides")).to_have_count(0)
        assert rows.locator(".name").all_inner_texts() == names[0]
        page.get_by_label("leave out what they have had").check()
        expect(rows.locator(".name").first).not_to_have_text("")
        assert page.wrong == []
    after = service.ask("/live")
    assert [after[key] for key in ("events", "accepted", "newest")] == [
        before[key] for key in ("events", "accepted", "newest")
    ]


def test_it_follows_events_and_ids_are_never_markup(browser, service):
    newest = service.ask("/live")["newest"]
    service.send((NASTY_USER, service.item, newest))
    with opened(browser, service, at("users", NASTY_USER)) as page:
        expect(page.locator("main h1")).to_contain_text(NASTY_USER)
        expect(page.locator(".timeline li")).to_have_count(1)
        service.send((NASTY_USER, NASTY_ITEM, newest + 60))
        expect(page.locator(".timeline li")).to_have_count(2, timeout=15_000)
        page.locator(".timeline li a").first.click()
        expect(page.locator("main h1")).to_contain_text(NASTY_ITEM)
        expect(page.locator("main")).to_contain_text("met once")
        assert page.locator("main img, main h1 b").count() == 0
        assert page.wrong == []


def test_what_goes_wrong_is_a_sentence(browser, service):
    with opened(browser, service, at("users", "nobody at all"), token=None) as page:
        page.get_by_role("textbox", name="Token").fill("not it")
        page.keyboard.press("Enter")
        expect(page.get_by_text("That was not it.")).to_be_visible()
        page.get_by_role("textbox", name="Token").fill(TOKEN)
        page.keyboard.press("Enter")
        expect(page.locator(".head .wrong")).to_have_text("Nobody knows the user 'nobody at all'.")
        expect(page.locator(".ranked li")).to_have_count(10)  # the popular list
        page.route("**/live", lambda route: route.abort())
        expect(page.get_by_role("alert").filter(has_text="does not answer")).to_be_visible()
        page.unroute("**/live")
        expect(page.get_by_role("alert").filter(has_text="does not answer")).to_be_hidden()
