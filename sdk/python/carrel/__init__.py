"""carrel: workspaces for AI agents on a Linux host.

Client and AsyncClient have the same words. docs/sdks.md of the project shows them beside Go and TypeScript.
"""
from . import errors, messages
from ._async_client import AsyncClient
from ._async_command import Command as AsyncCommand
from ._async_command import Terminal as AsyncTerminal
from ._async_workspace import Workspace as AsyncWorkspace
from ._result import Output, Result
from ._sync_client import Client
from ._sync_command import Command, Terminal
from ._sync_workspace import Workspace
from .errors import CarrelError
from .messages import Limits, Status, UpdateRequest

__version__ = "0.1.0"

__all__ = [
    "AsyncClient", "AsyncCommand", "AsyncTerminal", "AsyncWorkspace", "CarrelError", "Client", "Command", "Limits", "Output", "Result",
    "Status", "Terminal", "UpdateRequest", "Workspace", "errors", "messages",
]  # fmt: skip
