"""Every public data set is read from a small file in its publisher's format."""

import numpy as np
import pytest

from dynedge.data.ingest.pipeline import prepare
from dynedge.data.log import EventLog
from dynedge.data.public_datasets import DATASETS, find_dataset
from dynedge.errors import DataError, UsageError

JODIE = """user_id,item_id,timestamp,state_label,comma_separated_list_of_features
0,0,0.0,0,-0.175062,-0.176678,1e-3
1,1,36.0,1,-0.175062,-0.176678,2
0,1,77.5,0,0,0,3
"""
JODIE_FEATURES = [[-0.175062, -0.176678, 0.001], [-0.175062, -0.176678, 2], [0, 0, 3]]
U_DATA = "196\t242\t3\t881250949\n186\t302\t3\t891717742\n22\t377\t1\t878887116\n"
RATINGS_DAT = "1::1193::5::978300760\n1::661::3::978302109\n2::1193::3.5::978301968\n"
RATINGS_CSV = "userId,movieId,rating,timestamp\n1,296,5.0,1147880044\n1,306,3.5,1147868817\n2,306,0.5,1147868828\n"
TAOBAO = "1,2268318,2520377,pv,1511544070\n1,2333346,2520771,buy,1511561733\n2,2268318,2520377,cart,1511544000\n"


def read(tmp_path, name, text):
    dataset = find_dataset(name)
    (tmp_path / dataset.file).write_text(text)
    return prepare(dataset.find(tmp_path), tmp_path / "log", dataset.schema, max_bad=0), dataset


@pytest.mark.parametrize("name", ["wikipedia", "reddit", "lastfm", "mooc"])
def test_jodie_files_are_read(tmp_path, name):
    log, _ = read(tmp_path, name, JODIE)
    assert log.user_ids.take(log.user) == [0, 1, 0]
    assert log.time.tolist() == [0.0, 36.0, 77.5]
    assert log.label.tolist() == [0, 1, 0]
    assert log.features == pytest.approx(np.array(JODIE_FEATURES, np.float32))


def test_jodie_files_may_have_any_number_of_features(tmp_path):
    header, *rows = JODIE.splitlines()
    for width in (0, 1, 172):
        lines = [",".join(row.split(",")[:4] + ["0.5"] * width) for row in rows]
        log, _ = read(tmp_path, "wikipedia", "\n".join([header, *lines]))
        assert log.features.shape == (3, width)
        assert len(log) == 3
        (tmp_path / "log").rename(tmp_path / f"log-{width}")


@pytest.mark.parametrize(
    ("name", "text", "events"),
    [
        ("ml-100k", U_DATA, [(22, 377, 878887116), (196, 242, 881250949), (186, 302, 891717742)]),
        ("ml-1m", RATINGS_DAT, [(1, 1193, 978300760), (2, 1193, 978301968), (1, 661, 978302109)]),
        ("ml-10m", RATINGS_DAT, [(1, 1193, 978300760), (2, 1193, 978301968), (1, 661, 978302109)]),
        ("ml-20m", RATINGS_CSV, [(1, 306, 1147868817), (2, 306, 1147868828), (1, 296, 1147880044)]),
        ("ml-25m", RATINGS_CSV, [(1, 306, 1147868817), (2, 306, 1147868828), (1, 296, 1147880044)]),
    ],
)
def test_movielens_files_are_read(tmp_path, name, text, events):
    log, _ = read(tmp_path, name, text)
    rows = zip(log.user_ids.take(log.user), log.item_ids.take(log.item), log.time.tolist(), strict=True)
    assert list(rows) == events
    assert log.label is not None
    assert sorted(log.label.tolist()) == sorted(float(part) for part in _ratings(text))


def _ratings(text):
    for line in text.splitlines():
        fields = line.replace("::", "\t").replace(",", "\t").split("\t")
        if fields[0] != "userId":
            yield fields[2]


def test_the_taobao_file_is_read(tmp_path):
    log, _ = read(tmp_path, "taobao", TAOBAO)
    assert log.item_ids.take(log.item) == [2268318, 2268318, 2333346]
    assert [log.category_ids[0][code] for code in log.item_categories[:, 0]] == [2520377, 2520771]
    assert log.label.tolist() == [1, 0, 3], "cart, pv, buy"
    assert log.metadata["item_features"] == ["category"]


def test_an_unknown_behaviour_is_rejected(tmp_path):
    (tmp_path / "UserBehavior.csv").write_text(TAOBAO.replace("buy", "gift"))
    log = prepare(tmp_path / "UserBehavior.csv", tmp_path / "log", find_dataset("taobao").schema, max_bad=1)
    assert log.metadata["rejected_why"] == {"not a number": 1}
    assert ",behaviour,gift," in (log.path / "rejects.csv").read_text()


def test_a_file_with_other_counts_than_published_is_reported(tmp_path):
    log, dataset = read(tmp_path, "ml-100k", U_DATA)
    assert "3 users instead of 943" in dataset.mismatch(log)


@pytest.mark.parametrize("name", DATASETS)
def test_published_counts_are_accepted_without_a_warning(name):
    for counts in DATASETS[name].counts:
        users, items = counts.users or counts.nodes, counts.items or counts.nodes
        log = EventLog.from_arrays([0] * 0, [], [], num_users=users, num_items=items)
        object.__setattr__(log, "user", range(counts.events))  # the published length, without its memory
        assert DATASETS[name].mismatch(log) == ""


def test_unknown_names_and_missing_files_raise_one_sentence(tmp_path):
    with pytest.raises(UsageError, match=r"'ml-99' is unknown; choose one of: wikipedia, .*taobao"):
        find_dataset("ml-99")
    with pytest.raises(DataError, match=r"contains no UserBehavior\.csv; download it from"):
        find_dataset("taobao").find(tmp_path)


def test_the_file_is_found_in_the_publishers_folder(tmp_path):
    (tmp_path / "ml-100k").mkdir()
    (tmp_path / "ml-100k" / "u.data").write_text(U_DATA)
    for path in (tmp_path, tmp_path / "ml-100k", tmp_path / "ml-100k" / "u.data"):
        assert find_dataset("ml-100k").find(path) == tmp_path / "ml-100k" / "u.data"
