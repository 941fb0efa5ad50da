// carrel: workspaces for AI agents on a Linux host. docs/sdks.md of the project shows this client beside Go and Python.
export { Approvals, Client, Secrets, Workspaces } from './client.js';
export { Command, Terminal } from './command.js';
export * from './errors.js';
export { Files } from './files.js';
export * as messages from './messages.js';
export { PortConnection, Ports, PublishedPort } from './port.js';
export { Result } from './result.js';
export { Task, Tasks } from './task.js';
export { Egress, Workspace } from './workspace.js';
