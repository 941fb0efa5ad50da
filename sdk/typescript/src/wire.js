// How messages become JSON and are read from it: that of protocol buffers, as Connect sends it.
import { InvalidArgument } from './errors.js';
import { schema } from './messages.js';

/** @param {string} kind @param {any} v @param {string} [of] @returns {any} */
function valueTo(kind, v, of) {
  switch (kind) {
    case 'bytes':
      return Buffer.from(v.buffer, v.byteOffset, v.byteLength).toString('base64');
    case 'int64':
    case 'big':
      return String(typeof v === 'number' ? Math.trunc(v) : v);
    case 'message':
      return toJSON(/** @type {string} */ (of), v);
    default:
      return v;
  }
}

/** @param {string} kind @param {any} v @param {string} [of] @returns {any} */
function valueFrom(kind, v, of) {
  switch (kind) {
    case 'bytes':
      return new Uint8Array(Buffer.from(v, 'base64'));
    case 'int64':
    case 'double':
      return Number(v);
    case 'big':
      return BigInt(v);
    case 'message':
      return fromJSON(/** @type {string} */ (of), v);
    default:
      return v;
  }
}

/** @type {Record<string, () => any>} */
const zero = {
  string: () => '', bytes: () => new Uint8Array(), bool: () => false, double: () => 0, int32: () => 0, int64: () => 0, big: () => 0n,
};

/**
 * A message as an object of JSON. A member that the schema does not know is refused: one that is misspelt would be left out.
 * @param {string} type @param {any} message @returns {Record<string, any>}
 */
export function toJSON(type, message) {
  /** @type {Record<string, any>} */
  const out = {};
  const fields = new Map(schema[type].map((f) => [f[0], f]));
  for (const [name, v] of Object.entries(message ?? {})) {
    const f = fields.get(name);
    if (!f) {
      const why = `cannot use the field ${name}: ${type} has none of that name; see docs/reference/api.md`;
      throw new InvalidArgument(why, 'invalid_argument');
    }
    const [, kind, shape, of] = f;
    if (v === undefined || v === null) continue;
    if (shape === 'map') {
      if (Object.keys(v).length) out[name] = v;
    } else if (shape === 'many') {
      if (!Array.isArray(v)) throw new InvalidArgument(`cannot use the field ${name}: it is a list; give an array`, 'invalid_argument');
      if (v.length) out[name] = v.map((x) => valueTo(kind, x, of));
    } else {
      out[name] = valueTo(kind, v, of);
    }
  }
  return out;
}

/**
 * The message that an object of JSON is. Members that this release does not know are passed over.
 * @param {string} type @param {Record<string, any>} json @returns {any}
 */
export function fromJSON(type, json) {
  /** @type {Record<string, any>} */
  const out = {};
  for (const [name, kind, shape, of] of schema[type]) {
    const v = json[name];
    if (shape === 'map') out[name] = { ...v };
    else if (shape === 'many') out[name] = (v ?? []).map((/** @type {any} */ x) => valueFrom(kind, x, of));
    else if (v !== undefined && v !== null) out[name] = valueFrom(kind, v, of);
    else if (shape === 'one') out[name] = zero[kind]();
  }
  return out;
}
