"""The test kit: run an agent in memory, crash it everywhere, compare with its twin.

    result = run_agent(agent, input={...}, people=[approve()], model=ScriptedModel([Reply("hi")]))
    crash_everywhere(agent, input={...}, people=[approve()])

Always: the store's and the worker's own code runs, on an in-memory engine, a virtual clock and
one thread: the same play goes the same way, and no test sleeps. For machines of developers: it
needs all three packages, which the modules of `stillrun` proper never do.
"""

try:
    import stillrun_agent  # noqa: F401
    import stillrun_store  # noqa: F401
except ImportError as error:
    raise ImportError(
        f"stillrun.testing needs {error.name}: pip install stillrun-store stillrun-agent"
    ) from error

from stillrun_agent.models.errors import ContextTooLong

from .clock import VirtualClock
from .crash import CrashReport, Difference, crash_everywhere
from .memory import MemoryEngine
from .model import ScriptedModel, ScriptEnded
from .people import Act, answer, approve, reject, say, settle, signal
from .play import Result, Stuck, run_agent

__all__ = [
    "Act",
    "ContextTooLong",
    "CrashReport",
    "Difference",
    "MemoryEngine",
    "Result",
    "ScriptEnded",
    "ScriptedModel",
    "Stuck",
    "VirtualClock",
    "answer",
    "approve",
    "crash_everywhere",
    "reject",
    "run_agent",
    "say",
    "settle",
    "signal",
]
