"""The verb `serve` as a user starts it, with the example's client and a log played into it."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

from serving.small_run import make_run, state_bits

from dynedge import cli
from dynedge.inference.session import Session
from dynedge.serving.engine import Engine

CLIENT = Path(__file__).parents[2] / "examples" / "client.py"


@contextmanager
def serving(*arguments, **environment):
    """The address of `dynedge serve …`; it is told to stop in the end, and must do so well."""
    command = [sys.executable, "-m", "dynedge", "serve", *map(str, arguments), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **environment})
    try:
        said = process.stdout.readline()
        assert said.startswith("http://"), said
        yield said.split()[0], process
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) in (0, -signal.SIGTERM)
        process.stdout.close()


def wait_for(what, seconds=30):
    deadline = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found


def test_a_log_is_played_into_it_and_the_client_of_the_examples_runs(runs_folder, tmp_path):
    run, data = make_run(runs_folder, "edge"), tmp_path / "data"
    with serving(run, "--data", data, "--replay", runs_folder / "log", "--rate", "5000") as (address, process):
        wait_for(lambda: json.load(urlopen(f"{address}/activity"))["journal_events"] == 600)
        assert len(CLIENT.read_text().split('"""', 2)[2].strip().splitlines()) <= 15
        command = [sys.executable, str(CLIENT), address, "ann", "A New Song"]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
        assert told[0] == "{'accepted': 1, 'duplicates': 0, 'late': 0}"
        assert len(told) == 6
        assert all(re.fullmatch(r" *-?\d+\.\d{3}  .+", line) for line in told[1:])
        process.send_signal(signal.SIGHUP)  # opens the same run anew
    engine = Engine(run, data)
    try:
        assert engine.snapshot_position == engine.journal.end == 601  # it left well
        expected = Session.open(run)
        expected.observe([event for batch in engine.journal.since(0) for event in batch])
        assert state_bits(engine.session) == state_bits(expected)
        assert engine.session.coverage.events == 3001
    finally:
        engine.close()


def test_another_machine_may_come_in_with_a_token_only(runs_folder, tmp_path, capsys):
    def refused(*arguments):
        code = cli.run(["serve", *map(str, arguments)])
        told = capsys.readouterr().err
        assert "Traceback" not in told
        return code, told

    run, empty = make_run(runs_folder, "edge"), tmp_path / "empty"
    empty.write_text("\n")
    code, told = refused(run, "--host", "0.0.0.0")
    assert (code, "--token-file" in told) == (2, True)
    assert refused(run, "--token-file", empty)[0] == 3
    assert refused(run, "--token-file", tmp_path / "nowhere")[0] == 3
    assert refused(tmp_path, "--data", tmp_path / "data")[0] == 3


def test_help_is_quick_and_needs_no_extra(cli_process):
    told = cli_process("serve", "--help")
    assert told.returncode == 0
    assert "--source" in told.stdout
    code = "import sys; from dynedge.cli import serve; assert not {'fastapi', 'torch', 'uvicorn'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
