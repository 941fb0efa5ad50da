import { InvalidArgument } from './errors.js';
import { milliseconds } from './result.js';

/**
 * @typedef {object} CommandOptions Times are in seconds.
 * @property {string} [cwd] absolute inside; the home unless said
 * @property {Record<string, string>} [env] laid over the base environment
 * @property {number} [timeout] ends the command
 * @property {number} [grace] between TERM and KILL
 * @property {string} [source] "user" for what a person wrote; else it counts as a model's
 * @property {string} [thread] the conversation that it belongs to
 * @property {number} [approvalWait] how long to wait for a person's answer; 0 throws NeedsApproval at once
 * @property {AbortSignal} [signal] hangs the command up
 */

/** @param {string[]} argv @param {CommandOptions} o */
export function commandOf(argv, o) {
  if (!Array.isArray(argv)) {
    const why = 'cannot run a text: argv is a list of words; write ["sh", "-c", text] for a line of shell';
    throw new InvalidArgument(why, 'invalid_argument');
  }
  const wait = o.approvalWait === undefined ? 0 : o.approvalWait <= 0 ? -1 : milliseconds(o.approvalWait);
  return {
    argv, cwd: o.cwd ?? '', env: o.env ?? {}, timeoutMs: milliseconds(o.timeout), graceMs: milliseconds(o.grace), source: o.source ?? '',
    thread: o.thread ?? '', approvalWaitMs: wait,
  };
}
