// Train a digit classifier's head in this tab and send 80 private bytes per round.
import { Client, Ledger, Refused } from "./quietbit.js";

const FEATURES = 64;
const CLASSES = 10;
const STEPS = 5;
const LEARNING_RATE = 1.0;
const PAUSE_MS = 300;
const client_number = new URLSearchParams(location.search).get("client") ?? "0";
const element = (id) => document.getElementById(id);

const say = (text) => {
  element("status").textContent = text;
};

async function bytes(path) {
  const answer = await fetch(path);
  if (!answer.ok) throw new Error(`${path}: ${answer.status}`);
  return answer.arrayBuffer();
}

const json = async (path) => JSON.parse(new TextDecoder().decode(await bytes(path)));
const floats = (base64) => new Float32Array(Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0)).buffer);

/** The change of the model by a few full-batch steps of softmax regression on this tab's digits. */
function train(model, features, labels) {
  const weights = Float64Array.from(model);
  const count = labels.length;
  for (let step = 0; step < STEPS; step++) {
    const gradient = new Float64Array(weights.length);
    for (let i = 0; i < count; i++) {
      const x = features.subarray(FEATURES * i, FEATURES * (i + 1));
      const scores = Array.from({ length: CLASSES }, (_, k) => weights[FEATURES * CLASSES + k]);
      for (let f = 0; f < FEATURES; f++) {
        for (let k = 0; k < CLASSES; k++) scores[k] += x[f] * weights[CLASSES * f + k];
      }
      const largest = Math.max(...scores);
      const exponentials = scores.map((score) => Math.exp(score - largest));
      const total = exponentials.reduce((sum, value) => sum + value, 0);
      for (let k = 0; k < CLASSES; k++) {
        const error = (exponentials[k] / total - (labels[i] === k ? 1 : 0)) / count;
        for (let f = 0; f < FEATURES; f++) gradient[CLASSES * f + k] += error * x[f];
        gradient[FEATURES * CLASSES + k] += error;
      }
    }
    for (let j = 0; j < weights.length; j++) weights[j] -= LEARNING_RATE * gradient[j];
  }
  return Float32Array.from(weights, (weight, j) => weight - model[j]);
}

async function showBudget(ledger, client) {
  const spent = await ledger.spent();
  element("budget").max = client.budget;
  element("budget").value = spent;
  element("budget-text").textContent = `${spent} of ${client.budget} releases used`;
}

function showPayload(round, payload) {
  const row = document.createElement("li");
  const hex = Array.from(payload, (byte) => byte.toString(16).padStart(2, "0")).join("");
  row.textContent = `Round ${round}: ${payload.length} bytes, ${hex}`;
  element("sent").append(row);
}

async function takePart() {
  element("start").disabled = true;
  say("Loading this tab's digits ...");
  const [module, table, data] = await Promise.all([
    bytes("quietbit.wasm"),
    bytes("table"),
    json(`data?client=${client_number}`),
  ]);
  const client = await Client.load(module, table);
  const ledger = await Ledger.open(`demo-${client_number}`, client);
  const features = floats(data.features);
  await showBudget(ledger, client);
  let answered = -1;
  for (;;) {
    const question = await json("round");
    element("accuracy").textContent = `${(100 * question.accuracy).toFixed(1)} %`;
    if (question.round >= question.rounds) break;
    if (question.round === answered) {
      say(`Round ${question.round + 1} of ${question.rounds}: waiting for the other tab.`);
      await new Promise((resolve) => setTimeout(resolve, PAUSE_MS));
      continue;
    }
    const mechanism = client.find(question.text);
    if (mechanism === null) throw new Refused(2);
    say(`Round ${question.round + 1} of ${question.rounds}: training on ${data.labels.length} digits.`);
    const update = train(floats(question.model), features, data.labels);
    const payload = await ledger.release(mechanism, update);
    await showBudget(ledger, client);
    showPayload(question.round + 1, payload);
    const path = `payload?client=${client_number}&round=${question.round}`;
    const answer = await fetch(path, { method: "POST", body: payload });
    if (!answer.ok) throw new Error(`the server refused the payload: ${await answer.text()}`);
    answered = question.round;
  }
  say("Done: the model is trained, and no digit left this tab.");
}

element("client").textContent = client_number;
element("start").addEventListener("click", () => {
  takePart().catch((error) => say(`Stopped: ${error.message}`));
});
if (new URLSearchParams(location.search).has("start")) element("start").click();
