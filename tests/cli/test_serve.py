"""The command serve in a process of its own, with the example client and a replayed log."""

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

import pytest
from serving.small_run import make_run, state_bits

from dynedge import cli
from dynedge.inference.session import Session
from dynedge.serving.engine import Engine
from dynedge.serving.journal import entries_after

CLIENT = Path(__file__).parents[2] / "examples" / "client.py"


@contextmanager
def serving(*arguments, **environment):
    """Starts `dynedge serve …` and yields its address and process; SIGTERM must end it cleanly."""
    command = [sys.executable, "-m", "dynedge", "serve", *map(str, arguments), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **environment})
    try:
        line = process.stdout.readline()
        assert line.startswith("http://"), line
        yield line.split()[0], process
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) in (0, -signal.SIGTERM)
        process.stdout.close()


def wait_for(condition, seconds=30):
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found


@pytest.mark.slow
def test_a_log_is_replayed_and_the_example_client_works(runs_folder, tmp_path):
    run, data = make_run(runs_folder, "edge"), tmp_path / "data"
    with serving(run, "--data", data, "--replay", runs_folder / "log", "--rate", "5000") as (address, process):
        wait_for(lambda: json.load(urlopen(f"{address}/activity"))["journal_events"] == 600)
        assert len(CLIENT.read_text().split('"""', 2)[2].strip().splitlines()) <= 15
        command = [sys.executable, str(CLIENT), address, "ann", "A New Song"]
        printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
        assert printed[0] == "{'accepted': 1, 'duplicates': 0, 'late': 0, 'position': '601'}"
        assert len(printed) == 6
        assert all(re.fullmatch(r" *-?\d+\.\d{3}  .+", line) for line in printed[1:])
        process.send_signal(signal.SIGHUP)  # opens the same run anew
    engine = Engine(run, data)
    try:
        assert engine.snapshot_position == engine.journal.end == 601  # it left well
        expected = Session.open(run)
        expected.observe([entry.event for entry in entries_after(engine.journal)])
        assert state_bits(engine.session) == state_bits(expected)
        assert engine.session.coverage.events == 3001
    finally:
        engine.close()


def test_other_machines_need_a_token(runs_folder, tmp_path, capsys):
    def refused(*arguments):
        code = cli.run(["serve", *map(str, arguments)])
        printed = capsys.readouterr().err
        assert "Traceback" not in printed
        return code, printed

    run, empty = make_run(runs_folder, "edge"), tmp_path / "empty"
    empty.write_text("\n")
    code, printed = refused(run, "--host", "0.0.0.0")
    assert (code, "--token-file" in printed) == (2, True)
    assert refused(run, "--token-file", empty)[0] == 3
    assert refused(run, "--token-file", tmp_path / "nowhere")[0] == 3
    assert refused(tmp_path, "--data", tmp_path / "data")[0] == 3


def test_help_imports_no_optional_packages(cli_process):
    printed = cli_process("serve", "--help")
    assert printed.returncode == 0
    assert "--replay" in printed.stdout
    code = "import sys; from dynedge.cli import serve; assert not {'fastapi', 'torch', 'uvicorn'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
