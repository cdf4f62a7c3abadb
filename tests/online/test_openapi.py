"""Whatever may be sent, by the service's description of itself, is answered without a server error, as described."""

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from online.making import make_run

from dynedge.models.registry import MODELS
from dynedge.online.engine import Engine
from dynedge.online.server import make_app


@pytest.fixture(scope="module")
def described(place, tmp_path_factory):
    engine = Engine(make_run(place, "edge"), tmp_path_factory.mktemp("openapi") / "data", MODELS)
    yield schemathesis.openapi.from_asgi("/openapi.json", make_app(engine))
    if engine._writer.is_alive():
        engine.close()


schema = schemathesis.pytest.from_fixture("described")


@schema.exclude(path=["/reload", "/metrics"]).parametrize()
@settings(max_examples=12, suppress_health_check=list(HealthCheck))
def test_as_described(case):
    case.call_and_validate()
