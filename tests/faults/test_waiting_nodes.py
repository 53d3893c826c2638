"""kill -9 of the owner while nodes wait for an agent: its successor goes on waiting."""

from __future__ import annotations

import os
import signal

import pytest

from tests.faults.scene import Scene
from tests.faults.victims import await_one, find_all, wait

pytestmark = pytest.mark.slow
