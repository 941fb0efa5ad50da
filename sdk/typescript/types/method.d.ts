/** A field of a message: name, kind, how often it is there, and the message that it is. */
export type Field = [name: string, kind: string, shape: string, of?: string];
export type Fields = Field[];

/** A method of carrel.v1 with its request and its answer. */
export interface Method<Q, A> {
  path: string;
  request: string;
  response: string;
  streams: string;
  repeatable: boolean;
  /** Never set: the types of the method. */
  of?: [Q, A];
}

/** What a request may leave out: everything. */
export type Init<T> = T extends Uint8Array | bigint | string | number | boolean
  ? T
  : T extends (infer U)[]
    ? Init<U>[]
    : { [K in keyof T]?: Init<T[K]> };
