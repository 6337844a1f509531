"""What a service asks of the operating system."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import services

ASK = """
import resource, sys
from stillrun.process import allow_open_files
soft, hard, wanted = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
assert allow_open_files(wanted) == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.parametrize(
    ("soft", "hard", "allowed"),
    [(100, 1000, 500), (100, 300, 300), (600, 1000, 600), (200, 200, 200)],
)
def test_the_limit_of_open_files_is_raised_as_far_as_it_may_be(soft, hard, allowed):
    command = [sys.executable, "-c", ASK, str(soft), str(hard), "500"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, services.PATHS))}
    found = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
    assert found.stdout.split() == [str(allowed), str(hard)]
