"""A service under load, killed again and again: is every acknowledged event there, once, and every bit the same?

    python benchmarks/kills.py                               # 1,000,000 events, 20 kills
    python benchmarks/kills.py --events 50000 --kills 20

A run is trained on a small made-up log. Clients send events in requests of up to 2 × --batch-size, 5 % of them a
second time; the service is killed (SIGKILL) at random moments and started again, and clients repeat whatever they got
no answer to. In the end the journal is compared with what was sent, and the states with those of a run that took in
the journal's events without interruption.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from machine import machine

from dynedge.inference.session import Session
from dynedge.serving.engine import Engine

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from serving.kill_service import storm
from serving.small_run import make_events, make_run, state_bits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--clients", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=250, help="mean number of events per request")
    parser.add_argument("--every", type=int, default=50_000, help="events between snapshots")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kills-") as folder:
        place = Path(folder)
        run, data = make_run(place, "edge"), place / "data"
        events = make_events(place, args.events)
        print(f"{machine()}; {args.events:,} events by {args.clients} clients, {args.kills} kills")
        began = time.perf_counter()
        storming = {"clients": args.clients, "batch_size": args.batch_size, "every": args.every, "seed": args.seed}
        found = storm(run, data, events, args.kills, **storming, report=print)
        took = time.perf_counter() - began
        again = f"{found['sent_twice']:,} events were sent twice"
        starts = sorted(found["start_seconds"])
        print(
            f"{took:.0f} s, {args.events / took:,.0f} events/s; {again}; {found['kills']} kills; "
            f"starts took {starts[len(starts) // 2]:.2f} s on the median, {starts[-1]:.2f} s at most"
        )
        engine = Engine(run, data)
        journaled = [event for batch in engine.journal.since(0) for event in batch]
        uninterrupted = Session.open(run)
        uninterrupted.observe(journaled)
        checks = {
            "all events acknowledged": found["acknowledged"] == {event.event_id for event in events},
            "each in the journal exactly once, as it was sent": sorted(journaled) == sorted(events),
            "state equal to an uninterrupted run's": state_bits(engine.session) == state_bits(uninterrupted),
        }
        engine.close()
    for what, held in checks.items():
        print(f"{'yes' if held else 'NO '}  {what}")
    sys.exit(0 if all(checks.values()) else 1)


if __name__ == "__main__":
    main()
