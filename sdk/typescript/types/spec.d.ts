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
export function commandOf(argv: string[], o: CommandOptions): {
    argv: string[];
    cwd: string;
    env: Record<string, string>;
    timeoutMs: number;
    graceMs: number;
    source: string;
    thread: string;
    approvalWaitMs: number;
};
/**
 * Times are in seconds.
 */
export type CommandOptions = {
    /**
     * absolute inside; the home unless said
     */
    cwd?: string | undefined;
    /**
     * laid over the base environment
     */
    env?: Record<string, string> | undefined;
    /**
     * ends the command
     */
    timeout?: number | undefined;
    /**
     * between TERM and KILL
     */
    grace?: number | undefined;
    /**
     * "user" for what a person wrote; else it counts as a model's
     */
    source?: string | undefined;
    /**
     * the conversation that it belongs to
     */
    thread?: string | undefined;
    /**
     * how long to wait for a person's answer; 0 throws NeedsApproval at once
     */
    approvalWait?: number | undefined;
    /**
     * hangs the command up
     */
    signal?: AbortSignal | undefined;
};
