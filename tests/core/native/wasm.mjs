// Run conformance vectors through quietbit.js and quietbit.wasm: node wasm.mjs BROWSER_FOLDER VECTORS...
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const [folder, ...files] = process.argv.slice(2);
const { Client, Refused } = await import(pathToFileURL(`${folder}/quietbit.js`));
const module = readFileSync(`${folder}/quietbit.wasm`);
const REASONS = { dimension: 3 };
const CALLS = 1000;
const imports = WebAssembly.Module.imports(new WebAssembly.Module(module)).length;
let payloads = 0;
let refusals = 0;

const floats = (hex) => {
  const bytes = Buffer.from(hex, "hex");
  return new Float32Array(bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length));
};

function refusedWith(status, action) {
  try {
    action();
  } catch (error) {
    if (!(error instanceof Refused) || error.status !== status) throw error;
    refusals += 1;
    return;
  }
  throw new Error(`nothing was refused, expected status ${status}`);
}

/** A thousand calls, with a ledger beyond a page of memory, take no more of it than the first; nothing stays there. */
function checkMemory(client, mechanism, text) {
  const update = new Float32Array(mechanism.dimension).fill(0.123);
  const ledger = "x".repeat(70000);
  let size = 0;
  for (let i = 0; i < CALLS; i++) {
    client.find(text);
    refusedWith(5, () => client.spent(ledger));
    if (i % 50 === 0) client.draw(mechanism, update);
    if (i === 0) size = client.wasm.memory.buffer.byteLength;
  }
  refusals -= CALLS;
  if (client.wasm.memory.buffer.byteLength !== size) throw new Error("memory grew");
  const memory = Buffer.from(client.wasm.memory.buffer, client.wasm.reserve(0));
  if (memory.some((byte) => byte !== 0)) throw new Error("something was left in memory");
}

for (const file of files) {
  const vectors = JSON.parse(readFileSync(file, "utf8"));
  const table = Buffer.from(vectors.table, "base64");
  const client = await Client.load(module, table);
  for (const text of [vectors.text, vectors.description_text]) {
    const mechanism = client.find(text);
    for (const { update, key, payload } of [...vectors.releases, ...vectors.zeroed]) {
      const sent = Buffer.from(client.draw(mechanism, floats(update), Buffer.from(key, "hex"))).toString("hex");
      if (sent !== payload) throw new Error(`${vectors.name}: another payload`);
      payloads += 1;
    }
  }
  const mechanism = client.find(vectors.text);
  for (const text of vectors.refused.texts) {
    if (client.find(text) !== null) throw new Error(`${vectors.name}: a text was not refused`);
    refusals += 1;
  }
  for (const { update, reason } of vectors.refused.updates) {
    refusedWith(REASONS[reason], () => client.draw(mechanism, floats(update)));
  }
  checkMemory(client, mechanism, vectors.text);
  const begin = client.ledgerBegin();
  if (client.spent(begin) !== 0) throw new Error("a new ledger is not empty");
  const line = client.ledgerLine(mechanism, 0);
  if (client.spent(begin + line) !== mechanism.cost) throw new Error("a release was not counted");
  refusedWith(5, () => client.spent(begin + line.replace(" ", "  ")));
  refusedWith(6, () => client.ledgerLine(mechanism, client.budget));
  table[table.length - 1] ^= 1;
  await Client.load(module, table).then(
    () => { throw new Error("a damaged table was opened"); },
    (error) => { if (error.status !== 1) throw error; refusals += 1; },
  );
}
console.log(JSON.stringify({ imports, payloads, refusals }));
