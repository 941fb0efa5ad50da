import { setTimeout as sleep } from 'node:timers/promises';
import { ConnectionLost, Unavailable } from './errors.js';
import { TaskService } from './messages.js';
import { commandOf } from './spec.js';

/** @typedef {import('../types/carrel.d.ts').Task} TaskInfo */
/** @typedef {import('../types/carrel.d.ts').FollowTaskResponse} FollowTaskResponse */
/** @typedef {import('./spec.js').CommandOptions} CommandOptions */

/** How long follow waits before it asks again, in milliseconds: a daemon that is started anew needs a moment. */
const pauses = [100, 500, 2000, 5000];

/** The tasks of a workspace: programs that are given a prompt, report messages and ask for permissions. */
export class Tasks {
  /** @param {import('./workspace.js').Workspace} workspace */
  constructor(workspace) {
    this.workspace = workspace;
  }

  /** A task that is there, by its id. Nothing is asked yet. @param {string} id */
  of(id) {
    return new Task(this.workspace, id);
  }

  /**
   * Starts a task and returns it once the daemon keeps it. It goes on without this client. protocol is carrel, acp, agent or agent-acp; empty
   * is carrel. It is sent once and never again: after ConnectionLost look at list. timeout is how long the task may take, an hour
   * unless told otherwise, and approvalWait how long a person may take to answer what it asks. Its permissions wait as approvals
   * of the kind task.permission. With fd the program speaks on a socket that it inherits as this descriptor (CARREL_TASK_FD), and
   * its output is kept (logs). An aborted signal ends the call, not a task that has begun.
   * @param {string[]} argv @param {string} prompt
   * @param {CommandOptions & { protocol?: string, after?: string, planOnly?: boolean, fd?: number }} [o]
   */
  async run(argv, prompt, o = {}) {
    const { protocol = '', after = '', planOnly = false, fd = 0 } = o;
    const r = { workspace: this.workspace.ref, command: commandOf(argv, o), protocol, prompt, after, planOnly, fd };
    const { task } = await this.workspace.client.call(TaskService.runTask, r, { timeout: 0, signal: o.signal });
    return new Task(this.workspace, task?.id ?? '', task);
  }

  /** Those that are kept, the newest first. */
  async list() {
    return (await this.workspace.client.call(TaskService.listTasks, { workspace: this.workspace.ref })).tasks;
  }
}

/** A task of a workspace. info is what the daemon last said of it. */
export class Task {
  /** @param {import('./workspace.js').Workspace} workspace @param {string} id @param {TaskInfo} [info] */
  constructor(workspace, id, info) {
    this.workspace = workspace;
    this.id = id;
    /** @type {TaskInfo | undefined} */ this.info = info;
  }

  get #named() {
    return { workspace: this.workspace.ref, taskId: this.id };
  }

  /** @param {TaskInfo | undefined} info */
  #now(info) {
    this.info = info ?? this.info;
    return /** @type {TaskInfo} */ (this.info);
  }

  /** What the daemon says of it now. */
  async get() {
    return this.#now((await this.workspace.client.call(TaskService.getTask, this.#named)).task);
  }

  /**
   * Its messages with greater numbers than after, in their order, and new ones until it ends. The last answer has the task. With
   * now only those that there are. A message's body is JSON. lost counts those before it that are no longer kept. Where the
   * connection breaks it goes on behind the last message, so that none comes twice and none is left out.
   * @param {{ after?: number, now?: boolean, signal?: AbortSignal }} [o] @returns {AsyncGenerator<FollowTaskResponse, void, void>}
   */
  async *follow({ after = 0, now = false, signal } = {}) {
    for (let tries = 0; ; tries++) {
      try {
        for await (const a of this.workspace.client.watch(TaskService.followTask, { ...this.#named, after, now }, { signal })) {
          if (a.message) {
            after = a.message.number;
            tries = 0;
          }
          if (a.task) this.#now(a.task);
          yield a;
          if (a.task) return;
        }
        const why = `cannot follow ${this.id} any further: the stream ended before the task's state; follow it again`;
        throw new ConnectionLost(why, 'unavailable');
      } catch (e) {
        if (!(e instanceof Unavailable) || tries >= pauses.length) throw e;
      }
      await sleep(pauses[tries]);
    }
  }

  /** Waits for its end, and returns how it ended. @param {{ signal?: AbortSignal }} [o] */
  async wait(o = {}) {
    for await (const _ of this.follow({ after: (await this.get()).last, ...o }));
    return /** @type {TaskInfo} */ (this.info);
  }

  /** Asks it to stop, ends its program if it does not, and returns when it has ended. */
  async stop() {
    return this.#now((await this.workspace.client.call(TaskService.stopTask, this.#named)).task);
  }
}
