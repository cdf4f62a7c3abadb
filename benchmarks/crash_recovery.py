"""Kills a service under load repeatedly, and checks that no acknowledged event is lost, duplicated or altered.

    python benchmarks/crash_recovery.py                               # 1,000,000 events, 20 kills
    python benchmarks/crash_recovery.py --events 50000 --kills 20

A run is trained on a small synthetic log. Clients send events in requests of up to 2 × --batch-size, 5 % of them
twice; the service is killed (SIGKILL) at random times and restarted, and clients repeat requests without a response.
At the end the journal is compared with the events sent, and the state with that of a session that observed the
journal's events without interruption.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from machine_info import describe_machine

from dynedge.inference.session import Session
from dynedge.serving.engine import Engine
from dynedge.serving.journal import entries_after

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from serving.kill_service import storm
from serving.small_run import make_events, make_run, state_bits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=1_000_000, help="Number of events sent.")
    parser.add_argument("--kills", type=int, default=20, help="Number of times the service is killed.")
    parser.add_argument("--clients", type=int, default=3, help="Number of concurrent clients.")
    parser.add_argument("--batch-size", type=int, default=250, help="Mean number of events per request.")
    parser.add_argument("--every", type=int, default=50_000, help="Number of events between snapshots.")
    parser.add_argument("--seed", type=int, default=0, help="Seed of requests and kill times.")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="crash-recovery-") as folder:
        root = Path(folder)
        run, data = make_run(root, "edge"), root / "data"
        events = make_events(root, args.events)
        print(f"{describe_machine()}; {args.events:,} events by {args.clients} clients, {args.kills} kills")
        started = time.perf_counter()
        options = {"clients": args.clients, "batch_size": args.batch_size, "every": args.every, "seed": args.seed}
        outcome = storm(run, data, events, args.kills, **options, report=print)
        seconds = time.perf_counter() - started
        sent_twice = f"{outcome['sent_twice']:,} events were sent twice"
        starts = sorted(outcome["start_seconds"])
        print(
            f"{seconds:.0f} s, {args.events / seconds:,.0f} events/s; {sent_twice}; {outcome['kills']} kills; "
            f"median start {starts[len(starts) // 2]:.2f} s, slowest {starts[-1]:.2f} s"
        )
        engine = Engine(run, data)
        journaled = [entry.event for entry in entries_after(engine.journal)]
        uninterrupted = Session.open(run)
        uninterrupted.observe(journaled)
        checks = {
            "all events acknowledged": outcome["acknowledged"] == {event.event_id for event in events},
            "each event in the journal exactly once, as sent": sorted(journaled) == sorted(events),
            "state bit-identical to that of an uninterrupted session": state_bits(engine.session)
            == state_bits(uninterrupted),
        }
        engine.close()
    for check, passed in checks.items():
        print(f"{'yes' if passed else 'NO '}  {check}")
    sys.exit(0 if all(checks.values()) else 1)


if __name__ == "__main__":
    main()
