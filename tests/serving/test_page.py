"""The page in a real browser: Debian's chromium, driven by Playwright; skipped where it is not installed."""

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

from dynedge.serving import drift

CHROMIUM = shutil.which("chromium")
TOKEN = "a test token"
MARKUP_USER, MARKUP_ITEM = '<img src="x" onerror="alert(1)">', "<b>bold</b> & 50% / 'it'?#"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: apt-get install chromium"),
]


class Service:
    def __init__(self, address, events):
        self.address, self.events = address, events
        self.user, self.item = events[-1].user, events[-1].item

    def request(self, path, body=None):
        headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        return json.load(urlopen(Request(self.address + path, data, headers)))

    def send(self, *events):
        keys = "user_id", "item_id", "timestamp"
        return self.request("/events", {"events": [dict(zip(keys, event[:3], strict=True)) for event in events]})


@pytest.fixture(scope="module")
def service(runs_folder, tmp_path_factory):
    run = make_run(runs_folder, "edge")
    data = tmp_path_factory.mktemp("page") / "data"
    with serving(run, "--data", data, DYNEDGE_TOKEN=TOKEN) as (address, _):
        service = Service(address, make_events(runs_folder, 60, new=0, late=0))
        service.send(*service.events[:-10])
        for event in service.events[-10:]:  # one by one, so that each state update is recorded
            service.send(event)
            time.sleep(drift.PAUSE)
        yield service


@pytest.fixture(scope="module")
def browser():
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM)
        yield browser
        browser.close()


@contextmanager
def opened(browser, service, where="", token=TOKEN, width=1280, **more):
    """Opens #/`where`; `page.problems` collects errors, warnings, dialogs, and requests to other hosts."""
    context = browser.new_context(viewport={"width": width, "height": 800}, reduced_motion="reduce", **more)
    context.set_default_timeout(10_000)
    if token:
        context.add_init_script(f"sessionStorage.setItem('dynedge token', {json.dumps(token)})")
    page = context.new_page()
    page.problems = []
    page.on(
        "console",
        lambda message: page.problems.append(message.text) if message.type in ("error", "warning") else None,
    )
    page.on("pageerror", lambda error: page.problems.append(str(error)))
    page.on("dialog", lambda dialog: (page.problems.append(dialog.message), dialog.dismiss()))
    page.on("request", lambda sent: None if sent.url.startswith(service.address) else page.problems.append(sent.url))
    page.on("response", lambda got: page.problems.append(f"{got.status} {got.url}") if got.status >= 400 else None)
    page.goto(f"{service.address}/#/{where}")
    yield page
    context.close()


def at(side, external_id):
    return f"{side}/{quote(external_id, safe='')}"


@pytest.mark.parametrize(("width", "scheme", "paper"), [(1280, "light", 255), (360, "dark", 20)])
def test_every_view_loads_without_errors_and_fits_the_screen(browser, service, width, scheme, paper):
    views = {
        "": "Send an event",
        at("users", service.user): "Trajectory",
        at("items", service.item): "Similar items",
        "run": "dynedge evaluate edge",
    }
    with opened(browser, service, width=width, color_scheme=scheme) as page:
        for where, text in views.items():
            page.evaluate(f"location.hash = {json.dumps('#/' + where)}")
            expect(page.locator("main")).to_contain_text(text)
            expect(page.locator(".rate strong").first).not_to_have_text("–")
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            charts = page.locator("main .chart svg, .activity .chart svg").all()
            assert len(charts) >= 2
            assert all(chart.locator("polyline, circle").count() for chart in charts)
        assert page.evaluate("getComputedStyle(document.body).backgroundColor").startswith(f"rgb({paper},")
        assert page.problems == []


def test_search_by_keyboard(browser, service):
    with opened(browser, service) as page:
        page.locator("main h1").wait_for()
        page.keyboard.press("/")
        field = page.get_by_role("combobox", name="Search users and items")
        expect(field).to_be_focused()
        page.keyboard.type(service.user[:-1].lower())
        expect(page.get_by_role("option", name=service.user)).to_be_visible()
        page.keyboard.press("ArrowDown")
        highlighted = page.locator(f"#{field.get_attribute('aria-activedescendant')}")
        expect(highlighted).to_have_attribute("aria-selected", "true")
        page.keyboard.press("ArrowUp")
        page.keyboard.press("Escape")
        expect(highlighted).to_be_hidden()
        page.keyboard.type(service.user[-1])
        page.keyboard.press("Enter")  # before the results are there: the best match is chosen all the same
        expect(page.locator("main h1")).to_contain_text(service.user)
        page.keyboard.press("/")
        page.keyboard.type("zzz")
        expect(page.get_by_text("No id starts with “zzz”.")).to_be_visible()
        assert page.problems == []


def test_explanations_and_what_if_which_stores_nothing(browser, service):
    before = service.request("/activity")
    with opened(browser, service, at("users", service.user)) as page:
        rows = page.locator(".recommended .ranked li")
        expect(rows).to_have_count(10)
        items = service.request(f"/users/{quote(service.user)}/recommendations?k=10&explain=true")["items"]
        shown = [f"{item['item_id']}\n{item['metadata']['genre']}" for item in items]
        assert rows.locator(".name").all_inner_texts() == shown
        share = max(items[0]["explanation"]["shares"].values())
        expect(rows.first.locator(".explanation small")).to_contain_text(f"{round(100 * share)}\u202f%")
        assert rows.first.locator(".shares i").count() > 1
        page.get_by_role("combobox", name="What if").fill(items[9]["item_id"])
        page.keyboard.press("Enter")
        expect(page.locator(".outcome")).to_contain_text(f"After {items[9]['item_id']}")
        expect(page.locator(".what-if")).to_contain_text("nothing was stored")
        names = [page.locator(".sides ol").nth(k).locator(".name").all_inner_texts() for k in (0, 1)]
        comparison = service.request(f"/users/{quote(service.user)}/what-if", {"item_id": items[9]["item_id"]})
        assert names == [[item["item_id"] for item in comparison[side]] for side in ("before", "after")]
        assert names[0] != names[1]
        page.get_by_role("button", name="Clear").click()
        expect(page.locator(".sides")).to_have_count(0)
        assert rows.locator(".name a").all_inner_texts() == names[0]
        page.get_by_label("Hide items already seen").check()
        expect(rows.locator(".name").first).not_to_have_text("")
        assert page.problems == []
    after = service.request("/activity")
    for key in ("journal_events", "accepted", "newest_event_time"):
        assert after[key] == before[key]


def test_views_follow_new_events_and_ids_are_never_markup(browser, service):
    newest = service.request("/activity")["newest_event_time"]
    service.send((MARKUP_USER, service.item, newest))
    with opened(browser, service, at("users", MARKUP_USER)) as page:
        expect(page.locator("main h1")).to_contain_text(MARKUP_USER)
        expect(page.locator(".history li")).to_have_count(1)
        service.send((MARKUP_USER, MARKUP_ITEM, newest + 60))
        expect(page.locator(".history li")).to_have_count(2, timeout=15_000)
        page.locator(".history li a").first.click()
        expect(page.locator("main h1")).to_contain_text(MARKUP_ITEM)
        expect(page.locator("main")).to_contain_text("1 event.")
        assert page.locator("main img, main h1 b").count() == 0
        assert page.problems == []


def test_errors_are_shown_as_sentences(browser, service):
    with opened(browser, service, at("users", "nobody at all"), token=None) as page:
        page.get_by_role("textbox", name="Token").fill("another token")
        page.keyboard.press("Enter")
        expect(page.get_by_text("This token is not valid.")).to_be_visible()
        page.get_by_role("textbox", name="Token").fill(TOKEN)
        page.keyboard.press("Enter")
        expect(page.locator(".head .error")).to_have_text("No user has the id 'nobody at all'.")
        expect(page.locator(".ranked li")).to_have_count(10)  # the most popular items
        page.route("**/activity", lambda route: route.abort())
        expect(page.get_by_role("alert").filter(has_text="does not respond")).to_be_visible()
        page.unroute("**/activity")
        expect(page.get_by_role("alert").filter(has_text="does not respond")).to_be_hidden()
