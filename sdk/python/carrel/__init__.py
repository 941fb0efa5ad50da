"""carrel: workspaces for AI agents on a Linux host.

Client and AsyncClient have the same words. docs/sdks.md of the project shows them beside Go and TypeScript.
"""
from . import errors, messages
from ._async_client import AsyncClient
from ._async_command import Command as AsyncCommand
from ._async_command import Terminal as AsyncTerminal
from ._async_port import PortConnection as AsyncPortConnection
from ._async_port import PublishedPort as AsyncPublishedPort
from ._async_task import Task as AsyncTask
from ._async_workspace import Workspace as AsyncWorkspace
from ._result import Output, Result
from ._sync_client import Client
from ._sync_command import Command, Terminal
from ._sync_port import PortConnection, PublishedPort
from ._sync_task import Task
from ._sync_workspace import Workspace
from .errors import CarrelError
from .messages import Limits, Status, UpdateRequest

__version__ = "0.1.0"

__all__ = [
    "AsyncClient", "AsyncCommand", "AsyncPortConnection", "AsyncPublishedPort", "AsyncTask", "AsyncTerminal", "AsyncWorkspace",
    "CarrelError", "Client", "Command", "Limits", "Output", "PortConnection", "PublishedPort", "Result", "Status", "Task", "Terminal",
    "UpdateRequest", "Workspace", "errors", "messages",
]  # fmt: skip
