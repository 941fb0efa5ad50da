/** An error of carrel. `code` is that of Connect; the text says what happened, why, and what to do next. */
export class CarrelError extends Error {
  /** @param {string} message @param {string} [code] @param {string} [request] what was asked for, without its contents */
  constructor(message, code = 'unknown', request = '') {
    super(message);
    this.name = new.target.name;
    this.code = code;
    this.request = request;
  }

  /** What to do next: the part of the text behind the last semicolon, empty if there is none. */
  get remedy() {
    const at = this.message.lastIndexOf('; ');
    return at < 0 ? '' : this.message.slice(at + 2);
  }
}

/** A field is wrong; the text names it. */
export class InvalidArgument extends CarrelError {}
/** There is no such workspace, command, file or program. */
export class NotFound extends CarrelError {}
/** The name is taken. */
export class AlreadyExists extends CarrelError {}
/** It is not the caller's, or policy or a person has refused it. */
export class PermissionDenied extends CarrelError {}
/** The token is not good, or the daemon's certificate is not the one that was expected. */
export class Unauthenticated extends CarrelError {}
/** The state forbids it, or a required control does not hold. */
export class FailedPrecondition extends CarrelError {}
/** A person has to approve it first. The same request again takes their answer up. */
export class NeedsApproval extends FailedPrecondition {
  /** @param {string} message @param {string} code @param {string} request @param {string} approval */
  constructor(message, code, request, approval) {
    super(message, code, request);
    this.approval = approval;
  }

  /** What a person answers it with. */
  get command() {
    return `carrel approvals approve ${this.approval}`;
  }
}
/** A limit is reached, or the daemon's disk is full. */
export class ResourceExhausted extends CarrelError {}
/** The daemon, the broker or an executor is gone. Trying again may help. */
export class Unavailable extends CarrelError {}
/** The connection ended before the answer: it is not known whether what was asked for was done. A command that was attached to
 * it is hung up. */
export class ConnectionLost extends Unavailable {}
/** Another operation came between. */
export class Aborted extends CarrelError {}
/** The time that the client gave is over. */
export class DeadlineExceeded extends CarrelError {}
/** The client or the daemon has ended the request. */
export class Canceled extends CarrelError {}
/** The daemon does not do this. */
export class Unimplemented extends CarrelError {}
/** A position is beyond the end. */
export class OutOfRange extends CarrelError {}
/** The record or stored data are damaged. */
export class DataLoss extends CarrelError {}
/** The daemon is at fault. */
export class Internal extends CarrelError {}

/** A command ended with another exit code than 0. Only Result.check throws it. */
export class CommandFailed extends CarrelError {
  /** @param {string} message @param {import('./result.js').Result} result */
  constructor(message, result) {
    super(message, 'command_failed');
    this.result = result;
  }
}

/** @type {Record<string, typeof CarrelError>} */
const byCode = {
  invalid_argument: InvalidArgument, not_found: NotFound, already_exists: AlreadyExists, permission_denied: PermissionDenied,
  unauthenticated: Unauthenticated, failed_precondition: FailedPrecondition, resource_exhausted: ResourceExhausted,
  unavailable: Unavailable, aborted: Aborted, deadline_exceeded: DeadlineExceeded, canceled: Canceled, unimplemented: Unimplemented,
  out_of_range: OutOfRange, data_loss: DataLoss, internal: Internal,
};

/** The error of an answer. @param {string} code @param {string} message @param {string} request */
export function errorOf(code, message, request) {
  if (code === 'failed_precondition' || code === 'unavailable') {
    const found = /a person has to approve it: approval (ap-[^,\s]+)/.exec(message);
    if (found) return new NeedsApproval(message, code, request, found[1]);
  }
  return new (byCode[code] ?? CarrelError)(message, code, request);
}
