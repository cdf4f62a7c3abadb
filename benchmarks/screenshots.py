"""Takes the pictures of the service's page that the documentation shows, in Debian's chromium.

    dynedge demo --out demo
    python benchmarks/screenshots.py demo/edge demo/log         # docs/pictures/page.png and page-dark.png

The service runs on a free port, replays the events after the run's training events, and is stopped at the end.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from dynedge.data.log import read_log

SIZE = {"width": 1280, "height": 900}
REPLAY_S = 12  # at RATE events per second; recent events are what the page shows
RATE = 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="Run folder of an explainable model.")
    parser.add_argument("log", type=Path, help="Log of the run, with later events.")
    parser.add_argument("--user", help="User whose page is shown; by default the one with the most events.")
    parser.add_argument("--browser", default="/usr/bin/chromium", help="Path of chromium.")
    default = Path(__file__).parents[1] / "docs" / "pictures"
    parser.add_argument("--out", type=Path, default=default, help="Folder of the pictures.")
    args = parser.parse_args()
    user = args.user or busiest_user(args.log)
    with service(args.run, args.log) as address:
        time.sleep(REPLAY_S)
        for name, scheme in (("page", "light"), ("page-dark", "dark")):
            take(f"{address}/#/users/{quote(user)}", args.out / f"{name}.png", scheme, args.browser)


def busiest_user(folder: Path) -> str:
    """The user with the most events of a log."""
    import numpy as np

    log = read_log(folder)
    return str(log.user_ids[int(np.bincount(log.user).argmax())])


@contextmanager
def service(run: Path, log: Path) -> Iterator[str]:
    """Runs the service and yields its address."""
    with tempfile.TemporaryDirectory() as data:
        options = ["--port", "0", "--data", f"{data}/data", "--replay", f"{log}", "--rate", f"{RATE}"]
        command = [sys.executable, "-m", "dynedge", "serve", f"{run}", *options]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout
            yield process.stdout.readline().split()[0]
        finally:
            process.terminate()
            process.wait()


def take(address: str, path: Path, scheme: str, browser: str) -> None:
    """Takes a picture of a page when its requests are answered."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=browser)
        page = chromium.new_page(viewport=SIZE, color_scheme=scheme)  # type: ignore[arg-type]
        page.goto(address)
        page.get_by_text("What if").first.wait_for(timeout=60_000)
        page.wait_for_timeout(3000)  # for the charts
        page.screenshot(path=path)
        chromium.close()
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
