// A quietbit client for the browser: quietbit.wasm, and a ledger in IndexedDB. Types are in quietbit.d.ts.
//
// A release is priced and noted in the ledger before anything is drawn, in one transaction: two tabs of one origin
// share the budget. What a ledger in a browser cannot resist: whoever clears the site's data, restores an older profile,
// or opens another browser has a fresh one. A server that must rely on the budget counts releases by account, too.

/** @readonly Meanings of a refusal: qb_status of quietbit_client.h. */
export const REFUSALS = Object.freeze({
  1: "the table is damaged",
  2: "the owner does not allow this mechanism",
  3: "the update has another dimension",
  4: "a release needs more memory than a page can address",
  5: "the ledger is damaged, or belongs to another table",
  6: "the budget is spent",
});

export class Refused extends Error {
  constructor(status) {
    super(`quietbit: ${REFUSALS[status] ?? `status ${status}`}.`);
    this.name = "Refused";
    this.status = status;
  }
}

const LINE_BYTES = 128;
const KEY_BYTES = 32;

export class Client {
  /** Compile the module and open the owner's table. */
  static async load(module, table) {
    const { instance } = await WebAssembly.instantiate(module, {});
    return new Client(instance.exports, new Uint8Array(table));
  }

  constructor(exports, table) {
    this.wasm = exports;
    if (exports.self_test() !== 0) throw new Error("quietbit: this module rounds otherwise, and must not be used.");
    const status = exports.open(this.#place(table), table.length); // the table stays where it is
    if (status !== 0) throw new Refused(status);
  }

  /** What all releases together may cost, in the table's units. */
  get budget() {
    return this.wasm.budget();
  }

  /** The mechanism that a server's text names, or null: nothing in the text is interpreted. */
  find(text) {
    const entry = this.#within(() => this.wasm.find(...this.#text(text)));
    if (entry === 0) return null;
    return Object.freeze({
      entry,
      cost: this.wasm.cost(entry),
      dimension: this.wasm.dimension(entry),
      radius: this.wasm.radius(entry),
      payloadBytes: this.wasm.payload_size(entry),
    });
  }

  /** The first line of a ledger of this table. */
  ledgerBegin() {
    return this.#within(() => {
      const line = this.#reserve(LINE_BYTES);
      return this.#read(line, this.wasm.ledger_begin(line));
    });
  }

  /** What a ledger's text says was spent; refused unless every line is as it was written. */
  spent(ledger) {
    const spent = this.#within(() => this.wasm.ledger_spent(...this.#text(ledger)));
    if (spent < 0) throw new Refused(-spent);
    return spent;
  }

  /** The line of one release; refused where the budget does not allow it. */
  ledgerLine(mechanism, spent) {
    return this.#within(() => {
      const line = this.#reserve(LINE_BYTES);
      const length = this.wasm.ledger_line(mechanism.entry, spent, line);
      if (length < 0) throw new Refused(-length);
      return this.#read(line, length);
    });
  }

  /** Clip, randomise and pack; `Ledger.release` calls this after the price was noted. A given key is for tests alone. */
  draw(mechanism, update, key = crypto.getRandomValues(new Uint8Array(KEY_BYTES))) {
    const { entry, dimension, payloadBytes } = mechanism;
    if (update.length !== dimension) throw new Refused(3);
    return this.#within(() => {
      const values = this.#reserve(4 * dimension);
      const words = this.#place(key);
      const payload = this.#reserve(payloadBytes);
      const workspace = this.#reserve(this.wasm.workspace_size(entry) >>> 0);
      new Float32Array(this.wasm.memory.buffer, values, dimension).set(update);
      const status = this.wasm.release(entry, values, dimension, words, workspace, payload);
      if (status !== 0) throw new Refused(status);
      return new Uint8Array(this.wasm.memory.buffer, payload, payloadBytes).slice();
    });
  }

  /** Give back, and wipe, all memory that an action took: neither the update nor the key stays. */
  #within(action) {
    const mark = this.wasm.mark();
    try {
      return action();
    } finally {
      this.wasm.rewind(mark);
    }
  }

  #reserve(size) {
    const place = this.wasm.reserve(size) >>> 0;
    if (place === 0) throw new Error("quietbit: not enough memory.");
    return place;
  }

  /** Copy bytes into the module's memory. */
  #place(bytes) {
    const place = this.#reserve(bytes.length);
    new Uint8Array(this.wasm.memory.buffer, place, bytes.length).set(bytes);
    return place;
  }

  /** Place and length of a text. */
  #text(text) {
    const bytes = new TextEncoder().encode(text);
    return [this.#place(bytes), bytes.length];
  }

  #read(place, length) {
    return new TextDecoder().decode(new Uint8Array(this.wasm.memory.buffer, place, length));
  }
}

export class Ledger {
  /** Open the ledger of a name in this origin's IndexedDB, or begin it. */
  static async open(name, client) {
    const request = indexedDB.open(`quietbit-ledger-${name}`, 1);
    request.onupgradeneeded = () => request.result.createObjectStore("text");
    return new Ledger(await finished(request), client);
  }

  constructor(database, client) {
    this.database = database;
    this.client = client;
  }

  /** The whole text, one line per release. */
  async text() {
    const store = this.database.transaction("text").objectStore("text");
    return (await finished(store.get("ledger"))) ?? this.client.ledgerBegin();
  }

  /** Units spent so far. */
  async spent() {
    return this.client.spent(await this.text());
  }

  /** Note the price, wait until it is on the disk, then draw: what fails afterwards has been paid for. */
  async release(mechanism, update) {
    const transaction = this.database.transaction("text", "readwrite", { durability: "strict" });
    const done = new Promise((resolve, reject) => {
      transaction.oncomplete = resolve;
      transaction.onabort = () => reject(transaction.error ?? new Error("quietbit: the ledger was not written."));
    });
    const store = transaction.objectStore("text");
    try {
      const text = (await finished(store.get("ledger"))) ?? this.client.ledgerBegin();
      store.put(text + this.client.ledgerLine(mechanism, this.client.spent(text)), "ledger");
    } catch (error) {
      done.catch(() => {});
      transaction.abort();
      throw error;
    }
    await done;
    return this.client.draw(mechanism, update);
  }
}

function finished(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}
