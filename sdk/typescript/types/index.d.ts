export * from "./errors.js";
export { Files } from "./files.js";
export * as messages from "./messages.js";
export { Result } from "./result.js";
export { Approvals, Client, Secrets, Workspaces } from "./client.js";
export { Command, Terminal } from "./command.js";
export { PortConnection, Ports, PublishedPort } from "./port.js";
export { Task, Tasks } from "./task.js";
export { Egress, Workspace } from "./workspace.js";
