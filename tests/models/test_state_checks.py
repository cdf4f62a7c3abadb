"""States of files: whatever is used as an index is checked before it is used."""

import shutil

import pytest
import torch
from serving.small_run import make_events, make_run

from dynedge.errors import DataError
from dynedge.inference.session import Session
from dynedge.models.base import State
from dynedge.models.ring_buffer import RingBuffers
from dynedge.runs.folder import load_run
from dynedge.utils.tensor_io import load_tensors, save_tensors


@pytest.fixture(scope="module")
def session(runs_folder):
    """A run of `edge` with a state that has grown."""
    opened = Session.open(make_run(runs_folder, "edge"))
    opened.observe(make_events(runs_folder, 200))
    return opened


def test_valid_states_pass(session, runs_folder):
    session.model.check_state(session.state)
    for name in ("edge-paper-large", "memory", "next-300-unseen"):
        opened = Session.open(make_run(runs_folder, name))
        opened.observe(make_events(runs_folder, 50))
        opened.model.check_state(opened.state)


def used_row(state, name):
    """A row that is in use: blocks that have moved leave old rows behind."""
    blocks = {"memory.history": "user_blocks", "memory.occurrences": "item_blocks"}.get(name)
    if blocks is None:
        return 0
    return next(start for start, length, _ in state[f"memory.{blocks}"].tolist() if length)


def test_every_integer_of_a_state_is_checked(session):
    """In every column of every integer tensor, for numbers that are too large and too small."""
    refused, accepted = 0, []
    for name, tensor in session.state.items():
        if tensor.dtype not in (torch.int32, torch.int64):
            continue
        columns = tensor.reshape(len(tensor), -1).shape[1]
        for column in range(min(columns, 6)):
            for value in (2**31 - 1, -7):
                damaged = State({**session.state, name: tensor.clone()})
                damaged[name].reshape(len(tensor), -1)[used_row(session.state, name), column] = value
                if torch.equal(damaged[name], tensor):
                    continue
                if name.endswith("next_count") and value > 0:  # counts more events than there were: harmless
                    continue
                if name.endswith("clock") and value > 0:  # a clock that is ahead
                    continue
                try:
                    session.model.check_state(damaged)
                except DataError:
                    refused += 1
                else:
                    accepted.append((name, column, value))
    assert not accepted
    assert refused > 30


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_that_are_not_finite_are_refused(session, value):
    for name, tensor in session.state.items():
        if tensor.dtype.is_floating_point:
            damaged = State({**session.state, name: tensor.clone()})
            damaged[name].view(-1)[0] = value
            with pytest.raises(DataError, match="not finite"):
                session.model.check_state(damaged)


def test_wrong_shapes_types_and_names_are_refused(session):
    for name, tensor in session.state.items():
        if name.endswith("occurrences"):  # may have any capacity
            continue
        for change in (tensor[:-1], tensor.double() if tensor.dtype != torch.float64 else tensor.int(), tensor[None]):
            with pytest.raises(DataError):
                session.model.check_state(State({**session.state, name: change}))
        with pytest.raises(DataError, match="has no"):
            session.model.check_state(State({other: t for other, t in session.state.items() if other != name}))
    with pytest.raises(DataError, match="does not belong"):
        session.model.check_state(State({**session.state, "memory.x": torch.zeros(1)}))


def test_ring_buffers_are_checked():
    buffers = RingBuffers(0, 3, 4)
    state = buffers.start(torch.device("cpu"))
    state["user_event_counts"][1], state["user_partners"][1, 0], state["user_times"][1, 0] = 1, 4, 5.0
    buffers.check(state, 5)
    for name, value in (
        ("user_partners", 5),
        ("user_partners", -2),
        ("user_event_counts", -1),
        ("user_event_counts", 2),
    ):
        damaged = state.clone()
        damaged[name].view(-1)[1 if "counts" in name else 4] = value
        with pytest.raises(DataError):
            buffers.check(damaged, 5)


def test_a_damaged_run_is_refused_with_the_name_of_its_file(runs_folder, tmp_path):
    run = shutil.copytree(make_run(runs_folder, "edge"), tmp_path / "run")
    tensors = load_tensors(run / "state.safetensors")
    tensors["memory.user_blocks"][0, 0] = 2**40
    save_tensors(run / "state.safetensors", tensors)
    with pytest.raises(DataError, match=r"state.safetensors does not match manifest.json"):
        load_run(run)
    (run / "manifest.json").unlink()  # of an earlier version, or tampered with
    with pytest.raises(DataError, match=r"state.safetensors is damaged: 'user_blocks' has the number 1099511627776"):
        load_run(run)


def test_a_row_of_psi_that_does_not_exist_is_refused(runs_folder, tmp_path):
    run = shutil.copytree(make_run(runs_folder, "edge-paper-large"), tmp_path / "run")
    (run / "manifest.json").unlink()
    tensors = load_tensors(run / "model.safetensors")
    rows = tensors["psi_row_0"]
    rows[rows.argmax()] = 10**6
    save_tensors(run / "model.safetensors", tensors)
    with pytest.raises(DataError, match=r"model.safetensors does not fit .*'psi_row_0' is inconsistent"):
        load_run(run)


@pytest.mark.parametrize("code", [-1, 2**62])
def test_an_item_code_that_is_no_row_of_its_table_is_refused(runs_folder, tmp_path, code):
    run = shutil.copytree(make_run(runs_folder, "edge-paper-large"), tmp_path / "run")
    (run / "manifest.json").unlink()
    tensors = load_tensors(run / "model.safetensors")
    tensors["items.codes"][-1, 1] = code
    save_tensors(run / "model.safetensors", tensors)
    with pytest.raises(DataError, match=rf"model.safetensors does not fit .*'items.codes' has the number {code}"):
        load_run(run)
