import pytest


@pytest.fixture(scope="session")
def place(tmp_path_factory):
    """Where runs are made, once each."""
    return tmp_path_factory.mktemp("online")
