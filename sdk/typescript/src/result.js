import { CommandFailed } from './errors.js';

/** How much a Result keeps of each output unless told otherwise, in bytes. */
export const maxOutput = 64 << 20;

/** A command that ran to its end. One that fails is no error: look at exitCode, or call check. */
export class Result {
  /**
   * @param {string} commandId @param {import('../types/carrel.d.ts').Status} status
   * @param {Uint8Array} stdout @param {Uint8Array} stderr @param {number} stdoutLost what came beyond maxOutput @param {number} stderrLost
   */
  constructor(commandId, status, stdout, stderr, stdoutLost, stderrLost) {
    this.commandId = commandId;
    this.status = status;
    this.stdout = stdout;
    this.stderr = stderr;
    this.stdoutLost = stdoutLost;
    this.stderrLost = stderrLost;
  }

  /** The exit code, or 128 + the signal that ended it. */
  get exitCode() {
    return this.status.code;
  }

  get ok() {
    return this.status.code === 0;
  }

  /** stdout as text; bytes that are no UTF-8 are replaced. */
  get text() {
    return new TextDecoder().decode(this.stdout);
  }

  /** The result itself, or CommandFailed if the exit code is not 0. */
  check() {
    if (this.ok) return this;
    const last = new TextDecoder().decode(this.stderr.subarray(-1024)).trim();
    const why = this.status.timedOut ? 'it ran out of time' : `its exit code is ${this.exitCode}`;
    throw new CommandFailed(`command ${this.commandId} failed: ${why}${last ? `: ${last}` : ''}`, this);
  }
}

/** Bytes up to a bound; the rest is counted. */
export class Collected {
  /** @param {number} most */
  constructor(most) {
    this.most = most;
    this.have = 0;
    this.lost = 0;
    /** @type {Uint8Array[]} */ this.pieces = [];
  }

  /** @param {Uint8Array} data */
  add(data) {
    const keep = data.subarray(0, this.most - this.have);
    if (keep.length) this.pieces.push(keep);
    this.have += keep.length;
    this.lost += data.length - keep.length;
  }

  all() {
    return new Uint8Array(Buffer.concat(this.pieces));
  }
}

/** Rounded up, so that a short time does not become none. @param {number | undefined} seconds */
export function milliseconds(seconds) {
  return seconds ? Math.max(1, Math.ceil(seconds * 1000)) : 0;
}

/** @param {Uint8Array | string | undefined} data */
export function bytesOf(data) {
  return typeof data === 'string' ? new TextEncoder().encode(data) : (data ?? new Uint8Array());
}
