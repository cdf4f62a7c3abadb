"""Whatever may be sent, by the service's description of itself, is answered without a server error, as described."""

import socket
import threading

import pytest
import schemathesis
import uvicorn
from hypothesis import HealthCheck, given, settings
from schemathesis.specs.openapi.checks import positive_data_acceptance
from serving.small_run import make_run

from dynedge.serving.app import make_app
from dynedge.serving.engine import Engine

# Not all of what a text must be like to be a time is part of the description: such a request is refused with 422.
MAY_BE_REFUSED = [positive_data_acceptance]


@pytest.fixture(scope="module")
def operations(runs_folder, tmp_path_factory):
    """By name; the service is there, on a port of its own."""
    engine = Engine(make_run(runs_folder, "edge"), tmp_path_factory.mktemp("openapi") / "data")
    with socket.create_server(("127.0.0.1", 0)) as opened:
        server = uvicorn.Server(uvicorn.Config(make_app(engine), log_level="critical"))
        serving = threading.Thread(target=server.run, args=([opened],))
        serving.start()
        described = schemathesis.openapi.from_url(f"http://127.0.0.1:{opened.getsockname()[1]}/openapi.json")
        found = [one.ok() for one in described.get_all_operations()]
        yield {f"{one.method.upper()} {one.path}": one for one in found}
        server.should_exit = True
        serving.join()


OPERATIONS = """
POST /events
GET /users/{id}/recommendations
POST /recommendations
POST /users/{id}/what-if
GET /users/{id}/timeline
GET /users/{id}/drift
GET /items/{id}/drift
GET /users/{id}
GET /items/{id}/similar
GET /items/{id}
GET /search
GET /live
GET /run
POST /reload
GET /health
GET /ready
GET /metrics
"""


def test_all_are_here(operations):
    assert list(operations) == OPERATIONS.strip().splitlines()


@pytest.mark.parametrize("name", [name for name in OPERATIONS.strip().splitlines() if "/reload" not in name])
def test_as_described(operations, name):
    @settings(max_examples=12, suppress_health_check=list(HealthCheck))
    @given(operations[name].as_strategy())
    def check(case):
        case.call_and_validate(excluded_checks=MAY_BE_REFUSED)

    check()
