"""Requests generated from the OpenAPI schema are answered as the schema says, without server errors."""

import socket
import threading

import pytest
import uvicorn
from hypothesis import HealthCheck, given, settings
from serving.small_run import make_run

from dynedge.serving.app import make_app
from dynedge.serving.engine import Engine

schemathesis = pytest.importorskip("schemathesis", reason="extra http-tests")
checks = pytest.importorskip("schemathesis.specs.openapi.checks")
pytestmark = pytest.mark.slow

# The schema does not say which strings are valid times; other strings are refused with 422.
MAY_BE_REFUSED = [checks.positive_data_acceptance]


@pytest.fixture(scope="module")
def operations(runs_folder, tmp_path_factory):
    """Operations of a running service, by method and path."""
    engine = Engine(make_run(runs_folder, "edge"), tmp_path_factory.mktemp("openapi") / "data")
    with socket.create_server(("127.0.0.1", 0)) as opened:
        server = uvicorn.Server(uvicorn.Config(make_app(engine), log_level="critical"))
        serving = threading.Thread(target=server.run, args=([opened],))
        serving.start()
        schema = schemathesis.openapi.from_url(f"http://127.0.0.1:{opened.getsockname()[1]}/openapi.json")
        operations = [one.ok() for one in schema.get_all_operations()]
        yield {f"{one.method.upper()} {one.path}": one for one in operations}
        server.should_exit = True
        serving.join()


OPERATIONS = """
POST /events
GET /users/{id}/recommendations
POST /recommendations
POST /users/{id}/what-if
GET /items/{id}/similar
GET /users/{id}/history
GET /users/{id}/drift
GET /items/{id}/drift
GET /users/{id}
GET /items/{id}
GET /search
GET /activity
GET /run
POST /reload
GET /health
GET /ready
GET /metrics
"""


def test_the_schema_lists_these_operations(operations):
    assert list(operations) == OPERATIONS.strip().splitlines()


@pytest.mark.parametrize("name", [name for name in OPERATIONS.strip().splitlines() if "/reload" not in name])
def test_operations_behave_as_described(operations, name):
    @settings(max_examples=12, suppress_health_check=list(HealthCheck))
    @given(operations[name].as_strategy())
    def check(case):
        case.call_and_validate(excluded_checks=MAY_BE_REFUSED)

    check()
