"""A command as an operator types it, without the process around it."""

from __future__ import annotations

import argparse
import json
from types import ModuleType
from typing import Any


def typed(capsysbinary: Any, command: ModuleType, *arguments: object) -> tuple[int, list[dict]]:
    """Its exit code, and the JSON lines that it printed."""
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    capsysbinary.readouterr()
    code = command.run(parser.parse_args([str(argument) for argument in arguments]))
    out = capsysbinary.readouterr().out
    return code, [json.loads(line) for line in out.splitlines()]
