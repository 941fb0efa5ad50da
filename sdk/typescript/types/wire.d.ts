/**
 * A message as an object of JSON. A member that the schema does not know is refused: one that is misspelt would be left out.
 * @param {string} type @param {any} message @returns {Record<string, any>}
 */
export function toJSON(type: string, message: any): Record<string, any>;
/**
 * The message that an object of JSON is. Members that this release does not know are passed over.
 * @param {string} type @param {Record<string, any>} json @returns {any}
 */
export function fromJSON(type: string, json: Record<string, any>): any;
