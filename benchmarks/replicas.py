"""Kills replicas and their Redis under load, and checks that every acknowledged event is applied once everywhere.

    python benchmarks/replicas.py                       # 3 replicas, 1,000,000 events, 20 kills, 5 restarts of Redis
    python benchmarks/replicas.py --events 50000

Needs redis-server and the packages of the extras `serve` and `redis`. A run is trained on a small synthetic log.
Clients send events in requests of up to 2 × --batch-size to a random replica, 5 % of them twice. Replicas are killed
(SIGKILL) at random times and restarted from shared snapshots; so is Redis, which has an append-only file with
`appendfsync always`. Clients repeat requests without a response, or with status 503. At the end the stream is
compared with the events sent, and the state of every replica with that of a session that observed the stream once.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from machine_info import describe_machine

from dynedge.inference.session import Session
from dynedge.serving.journal import entries_after
from dynedge.serving.redis_journal import RedisJournal

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from serving.kill_service import replica_storm
from serving.redis_server import RedisServer
from serving.small_run import make_events, make_run, state_hash


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=1_000_000, help="Number of events sent.")
    parser.add_argument("--replicas", type=int, default=3, help="Number of replicas.")
    parser.add_argument("--kills", type=int, default=20, help="Number of times a replica is killed.")
    parser.add_argument("--restarts", type=int, default=5, help="Number of times Redis is killed and restarted.")
    parser.add_argument("--clients", type=int, default=3, help="Number of concurrent clients.")
    parser.add_argument("--batch-size", type=int, default=250, help="Mean number of events per request.")
    parser.add_argument("--every", type=int, default=50_000, help="Number of events between snapshots.")
    parser.add_argument("--seed", type=int, default=0, help="Seed of requests and kill times.")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="replicas-") as folder:
        root = Path(folder)
        run, events = make_run(root, "edge"), make_events(root, args.events)
        (root / "redis").mkdir()
        failures = f"{args.kills} kills of replicas, {args.restarts} of Redis"
        print(f"{describe_machine()}; {args.replicas} replicas, {args.events:,} events, {failures}", flush=True)
        started = time.perf_counter()
        with RedisServer(root / "redis") as redis:
            options = {key: value for key, value in vars(args).items() if key != "events"}
            outcome = replica_storm(run, root / "data", redis, events, **options, report=_print)
            seconds = time.perf_counter() - started
            journal = RedisJournal(redis.url("events"))
            journaled = [entry.event for entry in entries_after(journal)]
            journal.close()
            with redis.client as client:
                mib = client.info("memory")["used_memory"] / 2**20
        starts = sorted(outcome["start_seconds"])
        print(
            f"{seconds:.0f} s, {args.events / seconds:,.0f} events/s; {outcome['sent_twice']:,} sent twice; "
            f"median start {starts[len(starts) // 2]:.2f} s, slowest {starts[-1]:.2f} s; Redis has {mib:,.0f} MiB"
        )
        once = Session.open(run)
        once.observe(journaled)
        checks = {
            "all events acknowledged": outcome["acknowledged"] == {event.event_id for event in events},
            "each event in the stream exactly once, as sent": sorted(journaled) == sorted(events),
            "replicas have equal states": len(set(outcome["states"])) == 1,
            "and that of a session that observed the stream once": outcome["states"][0] == state_hash(once),
        }
    for check, passed in checks.items():
        print(f"{'yes' if passed else 'NO '}  {check}")
    sys.exit(0 if all(checks.values()) else 1)


def _print(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    main()
