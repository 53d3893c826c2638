"""An auditor of the test's database, who looks at the books once more when the test is over."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conftest import Database
from tests.ledger.checking import Auditor


@pytest.fixture
def auditor(database: Database) -> Iterator[Auditor]:
    """Sees everything (a superuser's connection); every test must leave sound books behind."""
    watching = Auditor(database.superuser_url)
    yield watching
    watching.check()
    watching.close()
