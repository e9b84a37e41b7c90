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
  4: "the update has a NaN or an infinite entry",
  5: "the ledger is damaged, or belongs to another table",
  6: "the budget is spent",
  7: "the update changed while it was sent",
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
    const place = this.#place(table);
    const status = exports.open(place, table.length);
    if (status !== 0) throw new Refused(status);
    this.line = exports.reserve(LINE_BYTES);
    this.buffers = new Map();
  }

  /** What all releases together may cost, in the table's units. */
  get budget() {
    return this.wasm.budget();
  }

  /** The mechanism that a server's text names, or null: nothing in the text is interpreted. */
  find(text) {
    const bytes = new TextEncoder().encode(text);
    const entry = this.wasm.find(this.#place(bytes), bytes.length);
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
    return this.#text(this.line, this.wasm.ledger_begin(this.line));
  }

  /** What a ledger's text says was spent; refused unless every line is as it was written. */
  spent(ledger) {
    const bytes = new TextEncoder().encode(ledger);
    const spent = this.wasm.ledger_spent(this.#place(bytes), bytes.length);
    if (spent < 0) throw new Refused(-spent);
    return spent;
  }

  /** The line of one release; refused where the budget does not allow it. */
  ledgerLine(mechanism, spent) {
    const length = this.wasm.ledger_line(mechanism.entry, spent, this.line);
    if (length < 0) throw new Refused(-length);
    return this.#text(this.line, length);
  }

  /** Clip, randomise and pack; `Ledger.release` calls this after the price was noted. A given key is for tests alone. */
  draw(mechanism, update, key = crypto.getRandomValues(new Uint8Array(KEY_BYTES))) {
    const { entry, payloadBytes } = mechanism;
    const room = this.#buffersOf(entry, update.length, payloadBytes);
    new Float32Array(this.wasm.memory.buffer, room.update, update.length).set(update);
    new Uint8Array(this.wasm.memory.buffer, room.key, KEY_BYTES).set(key);
    const status = this.wasm.release(entry, room.update, update.length, room.key, room.workspace, room.payload);
    const payload = new Uint8Array(this.wasm.memory.buffer, room.payload, payloadBytes).slice();
    // Neither the update nor the key stays in memory that a later bug could read.
    new Uint8Array(this.wasm.memory.buffer, room.key, KEY_BYTES).fill(0);
    new Uint8Array(this.wasm.memory.buffer, room.update, 4 * update.length).fill(0);
    new Uint8Array(this.wasm.memory.buffer, room.workspace, this.wasm.workspace_size(entry)).fill(0);
    if (status !== 0) throw new Refused(status);
    return payload;
  }

  #buffersOf(entry, count, payloadBytes) {
    const name = `${entry} ${count}`;
    if (!this.buffers.has(name)) {
      const reserve = (size) => {
        const place = this.wasm.reserve(size);
        if (place === 0) throw new Error("quietbit: not enough memory.");
        return place;
      };
      this.buffers.set(name, {
        update: reserve(4 * count),
        key: reserve(KEY_BYTES),
        workspace: reserve(this.wasm.workspace_size(entry) + 8),
        payload: reserve(payloadBytes),
      });
    }
    return this.buffers.get(name);
  }

  /** Copy bytes into the module's memory; one place serves all short texts that fit it. */
  #place(bytes) {
    if (!this.scratch || this.scratch.size < bytes.length || bytes.length > 65536) {
      this.scratch = { size: Math.max(bytes.length, 4096), place: this.wasm.reserve(Math.max(bytes.length, 4096)) };
      if (this.scratch.place === 0) throw new Error("quietbit: not enough memory.");
    }
    const place = this.scratch.place;
    new Uint8Array(this.wasm.memory.buffer, place, bytes.length).set(bytes);
    if (this.buffers === undefined) this.scratch = undefined; // the table stays where it is
    return place;
  }

  #text(place, length) {
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
